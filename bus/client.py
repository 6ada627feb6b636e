"""How every client of the bus is made."""

from bus.link import Link
from bus.url import read_url


def connect(url: str, *, timeout_s: float) -> Link:
    """Client for `url` whose every command ends within `timeout_s` seconds; connects on first use.

    Raises BusUnavailable for a URL it cannot read.
    """
    return Link(read_url(url), timeout_s=timeout_s)
