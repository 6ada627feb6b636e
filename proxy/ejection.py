"""Instances that just failed to connect or broke off are left alone for a moment. No I/O, no clock."""

from collections.abc import Iterable
from typing import Final

#: First pause after a failure; each further one doubles it.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0


class Ejections:
    """Which instances are out, and until when; seconds on a monotonic clock.

    >>> ejections = Ejections()
    >>> ejections.failed("a", now=0.0)
    >>> ejections.usable(["a", "b"], now=0.1), ejections.usable(["a", "b"], now=0.6)
    (['b'], ['a', 'b'])
    """

    def __init__(self) -> None:
        self._out: dict[str, tuple[float, float]] = {}  # instance → out until, length of the pause

    def failed(self, instance: str, now: float) -> None:
        """The instance could not be reached; failures while it is out already do not lengthen its pause."""
        until_s, pause_s = self._out.get(instance, (0.0, FIRST_PAUSE_S / 2))
        if now >= until_s:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._out[instance] = (now + pause_s, pause_s)

    def succeeded(self, instance: str) -> None:
        """The instance has answered: it is as good as any."""
        if self._out:
            self._out.pop(instance, None)

    def forget_all_but(self, instances: Iterable[str]) -> None:
        """Drop what is held against instances that are gone."""
        if self._out:
            self._out = {name: self._out[name] for name in instances if name in self._out}

    def is_out(self, instance: str, now: float) -> bool:
        """Whether the instance is to be left alone."""
        return instance in self._out and now < self._out[instance][0]

    def usable(self, instances: Iterable[str], now: float) -> list[str]:
        """Those that are not out; all of them if all are, since trying beats refusing."""
        every = list(instances)
        inside = [instance for instance in every if not self.is_out(instance, now)] if self._out else every
        return inside or every
