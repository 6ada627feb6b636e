"""How long answers are and how often requests come: running estimates that forget slowly. No I/O, no clock."""

import math
from collections.abc import Sequence
from typing import Final

#: Weight of a new sample once the mean is settled: a memory of about 100 requests.
MEAN_WEIGHT: Final = 0.01

#: A sample counts as no more than so many times the mean, or as a long answer: an engine that has lost count (2^53
#: tokens are believed) must not move the mean of a hundred answers to where none of them was.
LARGEST_SHARE: Final = 8.0
LONG_ANSWER_TOKENS: Final = 8192.0


class RunningMean:
    """Mean of samples, the newest `1 / MEAN_WEIGHT` counting most; starts from a prior worth one sample.

    >>> mean = RunningMean(100.0)
    >>> mean.learn(300.0)
    >>> mean.value
    200.0
    """

    def __init__(self, prior: float) -> None:
        self.value = prior
        self.samples = 0

    def learn(self, sample: float) -> None:
        """Take one sample; only finite numbers of at least 0 are."""
        if not math.isfinite(sample) or sample < 0:
            return
        sample = min(sample, max(LARGEST_SHARE * self.value, LONG_ANSWER_TOKENS))
        self.samples += 1
        self.value += max(1 / (self.samples + 1), MEAN_WEIGHT) * (sample - self.value)


def remaining_output(expected: float, produced: float, cap: int | None) -> float:
    """Tokens that an answer of `expected` tokens still has to produce after `produced`, at least 1.

    remaining = expected² / (expected + produced), at most cap - produced

    At the start it is the mean; an answer longer than the mean keeps a remainder that shrinks slowly, since nothing
    says that it is about to end. It never reads zero.

    >>> remaining_output(200, 0, None), remaining_output(200, 200, None), remaining_output(200, 0, 16)
    (200.0, 100.0, 16)
    """
    remaining = expected * expected / max(expected + produced, 1e-9)
    if cap is not None:
        remaining = min(remaining, cap - produced)
    return max(remaining, 1.0)


#: How much of the later of two expectations counts, see `expected_ends`.
LATE_SHARE: Final = 0.5


def expected_ends(lefts: Sequence[float]) -> list[float]:
    """When the first, second, … of several answers is expected to end, each having its own expected time left.

    The first to end does so sooner than the least of their expectations says: any of them may be it. If each may end
    at any moment (a rate of 1 / left), k ends of m come after mean * (1/m + 1/(m-1) + … + 1/(m-k+1)), with the mean
    that their rates give. That predicts best, and routes worse than the halfway between it and the k-th least
    expectation, which this is: who waits for a slot keeps others waiting behind it, so caution pays.

    >>> expected_ends([4.0])
    [4.0]
    >>> expected_ends([4.0, 4.0])
    [3.0, 5.0]
    """
    if not lefts:
        return []
    ordered = sorted(max(left, 1e-9) for left in lefts)
    mean = len(ordered) / sum(1 / left for left in ordered)
    found, memoryless = [], 0.0
    for place, left in enumerate(ordered):
        memoryless += mean / (len(ordered) - place)
        found.append(LATE_SHARE * left + (1 - LATE_SHARE) * memoryless)
    return found


class RateMeter:
    """Events a second over about the last minute: each counts e^(-age / 60 s).

    >>> meter = RateMeter()
    >>> for second in range(600):
    ...     meter.count(float(second))
    >>> round(meter.per_s(600.0), 1)
    1.0
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._weight = 0.0
        self._at_s = 0.0

    def count(self, now: float) -> None:
        """One event happened."""
        self._weight = self._weight * self._decay(now) + 1.0
        self._at_s = now

    def per_s(self, now: float) -> float:
        """Rate at `now`."""
        return self._weight * self._decay(now) / self._window_s

    def _decay(self, now: float) -> float:
        return math.exp(-max(0.0, now - self._at_s) / self._window_s)
