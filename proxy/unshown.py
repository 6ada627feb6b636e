"""Own choices that neither a record nor a reservation shows: made while the bus could not be asked. No I/O, no clock.

Without them a replica that lives on an old view would send everything to the one instance that looked best in it.
"""

from typing import Final

import msgspec

from bus.view import Pressure

#: A view read so long after a choice, s, has the request in its record: what it takes to reach the worker, and one
#: coalesced publish.
SHOWN_AFTER_S: Final = 0.1


class _Sent(msgspec.Struct, frozen=True):
    instance: str
    tokens: int
    at_s: float


class Unshown:
    """Counts what this replica has sent and no view shows yet, as in transit; times on one monotonic clock.

    >>> unshown = Unshown()
    >>> unshown.note("r1", "a", 500, now_s=10.0)
    >>> unshown.in_transit(read_at_s=9.9), unshown.in_transit(read_at_s=10.2)
    ({'a': (500, 1)}, {})
    """

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def note(self, request: str, instance: str, tokens: int, now_s: float) -> None:
        """A request was sent without a reservation."""
        self._sent[request] = _Sent(instance, tokens, now_s)

    def ended(self, request: str) -> None:
        """A request has ended, or was not delivered; one that was reserved is no matter."""
        if self._sent:
            self._sent.pop(request, None)

    def in_transit(self, *, read_at_s: float) -> dict[str, tuple[int, int]]:
        """Tokens and requests by instance that a view read at `read_at_s` does not show; what it shows is forgotten."""
        sums: dict[str, tuple[int, int]] = {}
        for request, sent in list(self._sent.items()):
            if read_at_s - sent.at_s >= SHOWN_AFTER_S:
                del self._sent[request]
                continue
            tokens, requests = sums.get(sent.instance, (0, 0))
            sums[sent.instance] = (tokens + sent.tokens, requests + 1)
        return sums

    def added_to(self, found: list[Pressure], *, read_at_s: float) -> list[Pressure]:
        """The instances with what they do not show yet counted as in transit."""
        sums = self.in_transit(read_at_s=read_at_s) if self._sent else {}
        return [_more(each, *sums[each.instance]) if each.instance in sums else each for each in found]


def _more(pressure: Pressure, tokens: int, requests: int) -> Pressure:
    return msgspec.structs.replace(
        pressure,
        in_transit_tokens=pressure.in_transit_tokens + tokens,
        in_transit_requests=pressure.in_transit_requests + requests,
    )
