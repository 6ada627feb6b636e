"""How long what was learned of an engine is believed with nothing to confirm it. No I/O; time is an argument.

An engine that is thought slow is not asked, and as long as it is not asked it cannot show that it is slow no longer.
So what no sample has confirmed for a while is a guess again where the engine is idle: a request goes there, and it is
known anew. One that proves to be what it was thought to be is believed for twice as long each time.
"""

from collections.abc import Sequence
from typing import Final

#: What was learned is believed for so long at first, and at most.
BELIEVED_S: Final = 30.0
LONGEST_BELIEVED_S: Final = 240.0

#: A time that is longer or shorter by more than this share has changed.
CHANGED_SHARE: Final = 0.1


class Trust:
    """Until when something that was learned is believed.

    >>> trust = Trust()
    >>> trust.renew([1.0], [1.0], now=0.0)
    >>> trust.is_over(29.0), trust.is_over(30.0)
    (False, True)
    """

    def __init__(self) -> None:
        self._until_s = float("inf")  # what was never learned needs no doubt
        self._believed_s = BELIEVED_S

    def is_over(self, now: float) -> bool:
        """Whether nothing has confirmed for too long what was learned."""
        return now >= self._until_s

    def renew(self, were_s: Sequence[float], are_s: Sequence[float], now: float) -> None:
        """A sample came, by which what was thought to take these times takes those."""
        if any(abs(is_s - was_s) > CHANGED_SHARE * was_s for was_s, is_s in zip(were_s, are_s, strict=True)):
            self._believed_s = BELIEVED_S
        elif self.is_over(now):
            self._believed_s = min(2 * self._believed_s, LONGEST_BELIEVED_S)
        self._until_s = now + self._believed_s
