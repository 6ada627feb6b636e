"""Saying something again and again, but seldom. No clock, no log: time is an argument, the caller speaks."""


class Seldom:
    """Lets one of many equal messages through each `every_s` seconds, and counts the others.

    >>> seldom = Seldom(every_s=60)
    >>> seldom.due(0.0), seldom.due(1.0), seldom.due(61.0), seldom.due(62.0)
    (1, 0, 2, 0)
    """

    def __init__(self, *, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._last_s: float | None = None
        self._unsaid = 0

    def due(self, now_s: float) -> int:
        """How many there were since the last that was said, this one included; 0: say nothing."""
        self._unsaid += 1
        if self._last_s is not None and now_s - self._last_s < self._every_s:
            return 0
        self._last_s, count, self._unsaid = now_s, self._unsaid, 0
        return count
