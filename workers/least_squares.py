"""Weighted least squares in a few unknowns, learned one sample at a time. No I/O, no clock.

    y = x1 * c1 + x2 * c2 + …, no coefficient negative

A sample weighs 1 / (deviation * y)², so that the *relative* error is minimised; older ones are forgotten slowly; a pull
to where it started, worth little, decides what the samples leave open; one outlier is clipped.
"""

import math
from collections.abc import Sequence
from typing import Final

#: Amounts and results beyond it teach nothing.
LARGEST: Final = 1e12


class LeastSquares:
    """Coefficients of a sum.

    `start` are the first coefficients, each thought wrong by about `start_deviation` times `scales` (by default
    itself); `forgetting` is the weight left to a sample after each newer one; `deviation` the usual relative error of a
    sample; one further off than `clip` times is pulled in to there.

    >>> fit = LeastSquares([1.0, 1.0], forgetting=0.99)
    >>> for n in range(1, 500):
    ...     fit.learn((n % 7, n % 5), 2.0 * (n % 7) + 3.0 * (n % 5))
    >>> [round(c, 2) for c in fit.coefficients]
    [2.0, 3.0]
    """

    def __init__(
        self,
        start: Sequence[float],
        *,
        forgetting: float,
        scales: Sequence[float] | None = None,
        start_deviation: float = 3.0,
        deviation: float = 0.1,
        clip: float = 8.0,
    ) -> None:
        self.coefficients = list(start)
        self.samples = 0
        self._forgetting = forgetting
        self._deviation = deviation
        self._clip = clip
        self._pull = [1 / (start_deviation * scale) ** 2 for scale in scales or start]
        self._pulled = [weight * value for weight, value in zip(self._pull, start, strict=True)]
        size = range(len(start))
        self._matrix = [[self._pull[i] if i == j else 0.0 for j in size] for i in size]
        self._sums = list(self._pulled)

    def at(self, row: Sequence[float]) -> float:
        """Value of the sum for the amounts `row`."""
        return sum(x * c for x, c in zip(row, self.coefficients, strict=True))

    def learn(self, row: Sequence[float], y: float) -> None:
        """Take one sample; what is no amount or no result is ignored."""
        if not (0 < y <= LARGEST and all(0 <= x <= LARGEST for x in row)):
            return
        predicted = max(self.at(row), 1e-9)
        clipped = min(max(y, predicted / self._clip), predicted * self._clip)
        weight = 1 / (self._deviation * max(predicted, clipped)) ** 2
        kept, lost = self._forgetting, 1 - self._forgetting
        for i, amount in enumerate(row):
            self._matrix[i] = [kept * m + weight * amount * x for m, x in zip(self._matrix[i], row, strict=True)]
            self._matrix[i][i] += lost * self._pull[i]
            self._sums[i] = kept * self._sums[i] + lost * self._pulled[i] + weight * amount * clipped
        self.samples += 1
        found = _solve(self._matrix, self._sums)
        if found is not None:
            self.coefficients = [max(value, 0.0) for value in found]

    def change_pace(self, factor: float, *, kept: float) -> None:
        """All that was seen would give `factor` times as much now, and counts for `kept` of what it did."""
        self.coefficients = [value * factor for value in self.coefficients]
        size = range(len(self._pull))
        for i in size:
            self._matrix[i] = [m * kept / factor**2 for m in self._matrix[i]]
            self._matrix[i][i] += (1 - kept / factor**2) * self._pull[i]
            self._sums[i] = (self._sums[i] - self._pulled[i]) * kept / factor + self._pulled[i]


def _solve(matrix: list[list[float]], sums: list[float]) -> list[float] | None:
    """Solve linear equations with a positive definite matrix; None where the amounts left nothing to solve."""
    rows = [[*row, total] for row, total in zip(matrix, sums, strict=True)]
    size = len(rows)
    for i in range(size):
        if not 0 < rows[i][i] < math.inf:
            return None
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = rest / rows[i][i]
    return found if all(math.isfinite(value) for value in found) else None
