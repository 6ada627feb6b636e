"""Whose turn it is among classes of waiting requests: weighted shares, and nobody starves. No I/O, no clock.

Stride scheduling (Waldspurger and Weihl, 1995). Every class has a pass; the waiting class with the lowest is served and
its pass grows by its stride, which is the inverse of its weight. While all wait, of 13 turns `high` has 8, `normal` 4
and `low` 1. A class that comes back after a pause starts at the pass of the class served last: what it did not use is
gone.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from bus.hop.headers import Priority

WEIGHTS: Final[Mapping[Priority, int]] = {"high": 8, "normal": 4, "low": 1}

#: Divisible by every weight, so that passes stay whole numbers.
_STRIDE: Final = 8


class Shares:
    """Turns of the classes so far.

    >>> shares = Shares()
    >>> shares.took("high")
    >>> shares.turn(["high", "normal", "low"])
    'normal'
    """

    def __init__(self) -> None:
        self._passes: dict[Priority, int] = dict.fromkeys(WEIGHTS, 0)
        self._now = 0

    def returned(self, priority: Priority) -> None:
        """The first of a class has come to wait."""
        self._passes[priority] = max(self._passes[priority], self._now)

    def turn(self, waiting: Iterable[Priority]) -> Priority:
        """Class whose turn it is of those in which somebody waits, at least one.

        It stays so until it has had its turn, but for one that comes back.
        """
        return min(waiting, key=lambda priority: (self._passes[priority], -WEIGHTS[priority]))

    def took(self, priority: Priority) -> None:
        """A class has had its turn."""
        self._now = self._passes[priority]
        self._passes[priority] += _STRIDE // WEIGHTS[priority]
