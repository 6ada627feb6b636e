"""What a client says to the gateway itself: how urgent its request is, and how long it waits. No I/O, no clock."""

from collections.abc import Mapping
from typing import Final

import msgspec

from bus.hop.headers import PRIORITIES, PRIORITY, TIMEOUT_MS, Priority, is_amount
from proxy.facts import BadRequest

#: A day.
LONGEST_TIMEOUT_MS: Final = 86_400_000


class Wishes(msgspec.Struct, frozen=True):
    """What the headers of one request ask for."""

    priority: Priority = "normal"
    timeout_s: float | None = None
    """None: the client has set no limit."""

    def at_most(self, priority: Priority) -> "Wishes":
        """The same, in no better class than `priority`.

        >>> Wishes("high").at_most("low").priority, Wishes("low").at_most("high").priority
        ('low', 'low')
        """
        return msgspec.structs.replace(self, priority=max(self.priority, priority, key=PRIORITIES.index))


def read_wishes(headers: Mapping[str, str]) -> Wishes:
    """Wishes of a request's headers. Raises BadRequest.

    >>> read_wishes({"x-forebay-priority": "low", "x-forebay-timeout-ms": "1500"})
    Wishes(priority='low', timeout_s=1.5)
    """
    name, timeout = headers.get(PRIORITY, "normal"), headers.get(TIMEOUT_MS)
    priority = next((known for known in PRIORITIES if known == name.strip().lower()), None)
    if priority is None:
        raise BadRequest(f"{PRIORITY} must be one of {', '.join(PRIORITIES)}", PRIORITY)
    if timeout is None:
        return Wishes(priority)
    if not is_amount(timeout) or int(timeout) > LONGEST_TIMEOUT_MS:
        raise BadRequest(f"{TIMEOUT_MS} must be a whole number from 1 to {LONGEST_TIMEOUT_MS}", TIMEOUT_MS)
    return Wishes(priority, int(timeout) / 1000)
