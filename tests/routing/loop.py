"""Virtual time: what is to happen, in the order of its time, the earlier planned first where times are equal."""

import heapq
from collections.abc import Callable
from typing import Any


class Loop:
    """An event loop without a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action(*args)` at `time_s`."""
        self._planned += 1
        heapq.heappush(self._events, (time_s, self._planned, action, args))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Play until `is_over()`, asked after each event, or until nothing is planned."""
        events = self._events
        while events:
            self.now, _, action, args = heapq.heappop(events)
            action(*args)
            if is_over():
                return
