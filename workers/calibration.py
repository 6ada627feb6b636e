"""Speeds learned online from what an engine really did. No I/O, no clock.

Two straight lines are learned: prefill time over prompt tokens, and decode step time over running requests. Each starts
from a stated prior, forgets slowly, weighs errors relative to the prediction, and moves only so far on one sample.
"""

import math
from typing import Final

from bus.record import TYPICAL_PROMPT_TOKENS
from workers.whole_answers import WholeAnswers

#: Weight left to a sample after each newer one: a memory of about 50 samples.
FORGETTING: Final = 0.98

#: The prior counts as this many samples, each at two places of the line.
PRIOR_SAMPLES: Final = 1.0

#: A sample further from the prediction than this many usual deviations is pulled in to there.
CLIP_DEVIATIONS: Final = 3.0

#: Usual deviation, as |ln(real / predicted)|: at the start (a prior may be wrong by a factor of three and more) and the
#: least that is assumed later.
FIRST_DEVIATION: Final = 0.7
LEAST_DEVIATION: Final = 0.1

#: No amount and no time of a request is larger; beyond it squares leave the range of floats.
LARGEST: Final = 1e12


class LinearFit:
    """y = fixed + slope * x, both never negative, learned from samples (x, y).

    Weighted least squares with exponential forgetting. A sample's weight is 1 / prediction², so that the *relative*
    error is minimised. Its y is first clipped to prediction * exp(±3 deviations): one outlier moves the line a little,
    a lasting change widens the deviation and is followed within some tens of samples.

    >>> line = LinearFit(fixed=0.0, slope=1.0, at=(1.0, 2.0))
    >>> for x in range(1, 1000):
    ...     line.learn(x % 10, 3.0 + 2.0 * (x % 10))
    >>> round(line.fixed, 3), round(line.slope, 3)
    (3.0, 2.0)
    """

    def __init__(self, *, fixed: float, slope: float, at: tuple[float, float]) -> None:
        self.fixed = fixed
        self.slope = slope
        self.samples = 0
        self._deviation = FIRST_DEVIATION
        self._n = self._x = self._xx = self._y = self._xy = 0.0
        for x in at:
            self._add(x, self.at(x), PRIOR_SAMPLES / 2)

    def at(self, x: float) -> float:
        """Value of the line at `x`."""
        return self.fixed + self.slope * x

    def learn(self, x: float, y: float) -> None:
        """Take one sample; anything but x in [0, 1e12] and y in (0, 1e12] is ignored: NaN and infinities too."""
        if not (0 <= x <= LARGEST and 0 < y <= LARGEST):
            return
        predicted = max(self.at(x), 1e-9)
        surprise = math.log(y / predicted)
        limit = CLIP_DEVIATIONS * self._deviation
        clipped = min(max(surprise, -limit), limit)
        self._deviation = max(LEAST_DEVIATION, 0.95 * self._deviation + 0.05 * abs(clipped))
        self.samples += 1
        self._decay()
        self._add(x, predicted * math.exp(clipped), 1.0)
        self._solve()

    def _decay(self) -> None:
        self._n *= FORGETTING
        self._x *= FORGETTING
        self._xx *= FORGETTING
        self._y *= FORGETTING
        self._xy *= FORGETTING

    def _add(self, x: float, y: float, weight: float) -> None:
        w = weight / max(self.at(x), 1e-9) ** 2
        self._n += w
        self._x += w * x
        self._xx += w * x * x
        self._y += w * y
        self._xy += w * x * y

    def _solve(self) -> None:
        """The least-squares line through what is remembered, kept to fixed >= 0 and slope >= 0."""
        spread = self._n * self._xx - self._x * self._x
        if spread > 1e-9 * self._n * self._xx:
            slope = (self._n * self._xy - self._x * self._y) / spread
            fixed = (self._y - slope * self._x) / self._n
            if fixed < 0:
                fixed, slope = 0.0, self._xy / self._xx
            elif slope < 0:
                fixed, slope = self._y / self._n, 0.0
            self.fixed, self.slope = fixed, slope
        else:  # all samples at one place: scale the line to go through it
            predicted = self.fixed * self._n + self.slope * self._x
            if predicted > 0:
                factor = self._y / predicted
                self.fixed, self.slope = self.fixed * factor, self.slope * factor


class Calibration:
    """What an instance's worker has learned of its engine's speed.

    Prefill: seconds for a prompt of n tokens = fixed + n * slope. Decode: seconds a step with r requests running =
    base + r * slope.
    """

    def __init__(self, *, prefill_tokens_per_s: float, decode_step_s: float) -> None:
        self._prefill = LinearFit(fixed=0.0, slope=1.0 / prefill_tokens_per_s, at=(128.0, 2048.0))
        self._decode = LinearFit(fixed=decode_step_s, slope=0.0, at=(1.0, 8.0))
        self._whole_answers = WholeAnswers(prompt_token_s=1.0 / prefill_tokens_per_s, step_s=decode_step_s)

    def prefill_s(self, tokens: float) -> float:
        """Seconds of prefill for `tokens` prompt tokens, above 0."""
        return max(self._prefill.at(tokens), 1e-4)

    def decode_step_s(self, running: float) -> float:
        """Seconds from one token to the next with `running` requests decoding, above 0."""
        return max(self._decode.at(max(running, 1.0)), 1e-5)

    def learn_prefill(self, tokens: float, seconds: float) -> None:
        """A prefill of `tokens` was seen to take `seconds`, waiting not included."""
        self._prefill.learn(tokens, seconds)

    def learn_decode_step(self, running: float, seconds: float) -> None:
        """A step was seen to take `seconds` on average, with `running` requests on average."""
        self._decode.learn(running, seconds)

    def learn_whole_answer(self, prompt_tokens: float, output_tokens: float, running: float, seconds: float) -> None:
        """An answer of which only the end was seen took `seconds`, waiting not included.

        The two lines learn what this says together with the answers before it: the first token comes after the
        prefill and one step.
        """
        answers = self._whole_answers
        answers.learn(prompt_tokens, output_tokens, running, seconds)
        step_s = answers.step_s(running)
        self.learn_prefill(prompt_tokens, prompt_tokens * answers.prompt_token_s + step_s)
        if output_tokens > 1:
            self.learn_decode_step(running, step_s)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Capacity for prefill at a typical prompt, fixed cost included, tokens/s."""
        return TYPICAL_PROMPT_TOKENS / self.prefill_s(TYPICAL_PROMPT_TOKENS)

    @property
    def prefill_fixed_s(self) -> float:
        """Seconds of a prefill that do not grow with the prompt."""
        return self._prefill.fixed

    @property
    def decode_slope_s(self) -> float:
        """Seconds that one more running request adds to a step."""
        return self._decode.slope

    @property
    def prefill_samples(self) -> int:
        """Prefills learned from."""
        return self._prefill.samples

    @property
    def decode_samples(self) -> int:
        """Decodes learned from."""
        return self._decode.samples
