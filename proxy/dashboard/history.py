"""The pressure of the last minutes, so that a page that is opened after the fact still shows it. No I/O, no clock.

Bounded: so many moments, and of each only the instances that were read then (of a large pool a sample).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bus.view import Pressure

#: Signals kept, each None where it was unknown.
KEPT_SIGNALS: Final = ("inflight", "predicted_wait_ms", "predicted_total_backlog_ms", "kv_usage")

#: Time between two moments, and how many of them are kept: five minutes.
EVERY_S: Final = 1.0
MOMENTS: Final = 300


class _Moment(msgspec.Struct, frozen=True):
    at_s: float
    values: Mapping[tuple[str, str], tuple[float | None, ...]]
    """(pool, instance) → the kept signals, tokens in transit, requests sent there since this replica's start."""


class History:
    """The last moments of all instances that this replica has seen.

    >>> history = History()
    >>> history.note({"default": []}, {}, now_s=10.0), history.note({"default": []}, {}, now_s=10.5)
    (True, False)
    """

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=MOMENTS)

    def note(self, pressures: Mapping[str, Sequence[Pressure]], selected: Mapping[str, int], *, now_s: float) -> bool:
        """Keep this moment, unless the last one is younger than about EVERY_S; whether it was kept."""
        if self._moments and now_s - self._moments[-1].at_s < 0.8 * EVERY_S:
            return False
        values = {
            (pool, each.instance): (
                *(each.signal(name) for name in KEPT_SIGNALS),
                each.in_transit_tokens,
                selected.get(each.instance, 0),
            )
            for pool, found in pressures.items()
            for each in found
        }
        self._moments.append(_Moment(now_s, values))
        return True

    def page(self, *, now_s: float) -> dict[str, Any]:
        """Page of /debug/history: the ages of the moments, oldest first, and for each instance a row a moment.

        A row is null where the instance was not read, and has a null where a signal was unknown.
        """
        identities = sorted({identity for moment in self._moments for identity in moment.values})
        return {
            "columns": [*KEPT_SIGNALS, "in_transit_tokens", "selected"],
            "ages_s": [round(now_s - moment.at_s, 2) for moment in self._moments],
            "instances": [
                {"pool": pool, "id": instance, "rows": [m.values.get((pool, instance)) for m in self._moments]}
                for pool, instance in identities
            ],
        }
