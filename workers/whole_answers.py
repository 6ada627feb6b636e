"""Speeds learned from answers that come in one piece, of which only the end is seen. No I/O, no clock.

    time of an answer = prompt tokens × a + output tokens × (b + running requests × c)

The three are learned together, since none of the parts is seen by itself. Decode is most of such a time and varies, so
that prefill shows only over many answers: the memory is longer than that of what is seen directly.
"""

import math
from typing import Final

from workers.least_squares import LARGEST, LeastSquares
from workers.linear_fit import KEPT_OF_ANOTHER_PACE, SHORTEST, Surprises

#: Weight left to an answer after each newer one: a memory of about 200.
FORGETTING: Final = 0.995

#: An answer that takes more than twice as long as predicted, or less than half, is a surprise; several in a row on one
#: side are another pace.
SURPRISE: Final = math.log(2)


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
        self._fit = LeastSquares(
            (prompt_token_s, step_s, 0.0), forgetting=FORGETTING, scales=(prompt_token_s, step_s, step_s / 10)
        )
        self._surprises = Surprises()

    @property
    def prompt_token_s(self) -> float:
        """Seconds of prefill that one more prompt token takes."""
        return self._fit.coefficients[0]

    def step_s(self, running: float) -> float:
        """Seconds of a step with `running` requests."""
        return self._fit.coefficients[1] + running * self._fit.coefficients[2]

    def doubt(self) -> None:
        """Nothing was seen for long: the next answer counts for more."""
        self._surprises.doubt()

    def learn(self, prompt_tokens: float, output_tokens: float, running: float, seconds: float) -> None:
        """An answer took `seconds`, waiting not included; what is no amount or no time is ignored."""
        row = (prompt_tokens, output_tokens, output_tokens * running)
        if not (0 < seconds <= LARGEST and all(0 <= amount <= LARGEST for amount in row)):
            return
        seconds = max(seconds, SHORTEST)
        surprise = math.log(seconds / max(self._fit.at(row), SHORTEST))
        is_first = self._surprises.ends_doubt()
        change = self._surprises.lasting(surprise, limit=SURPRISE, is_first=is_first)
        if change is not None or is_first:
            self._fit.change_pace(math.exp(change or 0.0), kept=KEPT_OF_ANOTHER_PACE)
        self._fit.learn(row, seconds)
