"""Speeds learned from answers that come in one piece, of which only the end is seen. No I/O, no clock.

    time of an answer = prompt tokens × a + output tokens × (b + running requests × c)

The three are learned together, since none of the parts is seen by itself: weighted least squares with forgetting and
a pull to where it started that is worth little. Decode is most of such a time and varies, so that prefill shows only
over many answers: the memory is longer than that of what is seen directly.
"""

import math
from typing import Final

#: Weight left to an answer after each newer one: a memory of about 200.
FORGETTING: Final = 0.995

#: Usual deviation of an answer's time from the model, as a share of it; of the start, as a share of each speed.
DEVIATION: Final = 0.1
START_DEVIATION: Final = 3.0

#: An answer further from the prediction than this factor is pulled in to there.
CLIP_FACTOR: Final = 8.0

#: Amounts and times beyond it teach nothing.
LARGEST: Final = 1e12


class WholeAnswers:
    """The three speeds of one engine, seconds: a prompt token, a step, and what each running request adds to a step.

    >>> answers = WholeAnswers(prompt_token_s=0.001, step_s=0.010)
    >>> for n in range(1, 500):
    ...     prompt, output, running = n % 7 * 100 + 1, n % 5 * 10 + 1, n % 3 + 1
    ...     answers.learn(prompt, output, running, prompt * 0.002 + output * (0.005 + running * 0.001))
    >>> round(answers.prompt_token_s, 4), round(answers.step_s(2), 4)
    (0.002, 0.007)
    """

    def __init__(self, *, prompt_token_s: float, step_s: float) -> None:
        self._speeds = [prompt_token_s, step_s, 0.0]
        scales = (prompt_token_s, step_s, step_s / 10)
        self._start = [1 / (START_DEVIATION * scale) ** 2 for scale in scales]
        self._start_sums = [weight * speed for weight, speed in zip(self._start, self._speeds, strict=True)]
        self._matrix = [[self._start[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._sums = list(self._start_sums)

    @property
    def prompt_token_s(self) -> float:
        """Seconds of prefill that one more prompt token takes."""
        return self._speeds[0]

    def step_s(self, running: float) -> float:
        """Seconds of a step with `running` requests."""
        return self._speeds[1] + running * self._speeds[2]

    def learn(self, prompt_tokens: float, output_tokens: float, running: float, seconds: float) -> None:
        """An answer took `seconds`, waiting not included; what is no amount or no time is ignored."""
        row = (prompt_tokens, output_tokens, output_tokens * running)
        if not (0 < seconds <= LARGEST and all(0 <= amount <= LARGEST for amount in row)):
            return
        predicted = max(sum(x * speed for x, speed in zip(row, self._speeds, strict=True)), 1e-9)
        clipped = min(max(seconds, predicted / CLIP_FACTOR), predicted * CLIP_FACTOR)
        weight = 1 / (DEVIATION * max(predicted, clipped)) ** 2
        for i in range(3):
            self._matrix[i] = [FORGETTING * m + weight * row[i] * x for m, x in zip(self._matrix[i], row, strict=True)]
            self._matrix[i][i] += (1 - FORGETTING) * self._start[i]
            self._sums[i] *= FORGETTING
            self._sums[i] += (1 - FORGETTING) * self._start_sums[i] + weight * row[i] * clipped
        speeds = _solve(self._matrix, self._sums)
        if speeds is not None:
            self._speeds = [max(speed, 0.0) for speed in speeds]


def _solve(matrix: list[list[float]], sums: list[float]) -> list[float] | None:
    """Solve three linear equations; None where amounts of all sizes have left nothing to solve."""
    rows = [[*row, total] for row, total in zip(matrix, sums, strict=True)]
    for i in range(3):
        if not 0 < rows[i][i] < math.inf:
            return None
        for j in range(i + 1, 3):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    found = [0.0, 0.0, 0.0]
    for i in (2, 1, 0):
        rest = rows[i][3] - sum(rows[i][j] * found[j] for j in range(i + 1, 3))
        found[i] = rest / rows[i][i]
    return found if all(math.isfinite(value) for value in found) else None
