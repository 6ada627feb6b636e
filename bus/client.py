"""How every Redis client of Forebay is made: no retries, short time limits, raw bytes."""

import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from bus.errors import BusUnavailable


def connect(url: str, *, timeout_s: float) -> redis_asyncio.Redis:
    """Client for `url` whose every command ends within about `timeout_s` seconds; connects on first use.

    The library's own defaults (ten retries with backoff, 5 s each) would hold a request for over 20 s when the server
    is dead; here a fault is reported at once and the caller decides. Raises BusUnavailable for a URL it cannot read.
    """
    try:
        return redis_asyncio.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
    except ValueError:
        # neither the URL nor what the library says of it: a part of a password may be taken for a port, and shown
        raise BusUnavailable("redis URL: expected redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]") from None
