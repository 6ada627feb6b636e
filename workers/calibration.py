"""Speeds learned online from what an engine really did. No I/O, no clock.

Two straight lines are learned: prefill time over prompt tokens, and decode step time over running requests; beside them
how much of a decode's time prefills take. Each starts from a stated prior; `workers/linear_fit.py` says how it learns.
"""

from typing import Final

from bus.record import TYPICAL_PROMPT_TOKENS
from workers.linear_fit import LinearFit, Shape
from workers.whole_answers import WholeAnswers

#: One more running request adds about 2 % to a step, give or take 3 %: batches are what engines are good at.
STEP_SHAPE: Final = Shape(slope_share=0.02, deviation=0.03)

#: Samples from which on a speed is known. Until then it is the prior's, which would shut a new instance out, or draw
#: everything to it, as its guess happens to be above or below what others have learned.
KNOWN_SAMPLES: Final = 2

#: Weight left to a decode after each newer one, where the share that prefills take is learned; and its least rest.
SHARE_FORGETTING: Final = 0.98
LEAST_OWN_SHARE: Final = 0.05


class Calibration:
    """What an instance's worker has learned of its engine's speed.

    Prefill: seconds for a prompt of n tokens = fixed + n * slope. Decode: seconds a step with r requests running =
    base + r * slope, with nothing prefilled beside it.
    """

    def __init__(self, *, prefill_tokens_per_s: float, decode_step_s: float) -> None:
        self._prefill = LinearFit(fixed=0.0, slope=1.0 / prefill_tokens_per_s, at=(128.0, 2048.0))
        self._decode = LinearFit(fixed=decode_step_s, slope=0.0, at=(1.0, 8.0), shape=STEP_SHAPE)
        self._own_s = self._decode_s = 1.0  # of decodes: seconds that prefills left, and all; each less with time
        self._whole_answers = WholeAnswers(prompt_token_s=1.0 / prefill_tokens_per_s, step_s=decode_step_s)

    def prefill_s(self, tokens: float) -> float:
        """Seconds of prefill for `tokens` prompt tokens, above 0."""
        return max(self._prefill.at(tokens), 1e-4)

    def decode_step_s(self, running: float) -> float:
        """Seconds from one token to the next with `running` requests decoding, above 0."""
        return max(self._decode.at(max(running, 1.0)), 1e-5)

    def interrupted_step_s(self, running: float) -> float:
        """The same with what prefills put between the steps, as it was of late."""
        return self.decode_step_s(running) / max(self._own_s / self._decode_s, LEAST_OWN_SHARE)

    def doubt(self) -> None:
        """Nothing has confirmed for long what is known: what comes next counts for more."""
        for each in (self._prefill, self._decode, self._whole_answers):
            each.doubt()

    def learn_prefill(self, tokens: float, seconds: float) -> None:
        """A prefill of `tokens` was seen to take `seconds`, waiting not included."""
        self._prefill.learn(tokens, seconds)

    def learn_decode_step(self, running: float, seconds: float) -> None:
        """A step was seen to take `seconds` on average, with `running` requests on average."""
        self._decode.learn(running, seconds)

    def learn_interruptions(self, own_s: float, seconds: float) -> None:
        """Of a decode's `seconds`, prefills of others left `own_s`."""
        self._own_s = SHARE_FORGETTING * self._own_s + max(own_s, 0.0)
        self._decode_s = SHARE_FORGETTING * self._decode_s + seconds

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
    def paces_s(self) -> tuple[float, float]:
        """What tells one pace from another: seconds of a typical prefill, and of a step of one request."""
        return self.prefill_s(TYPICAL_PROMPT_TOKENS), self.decode_step_s(1.0)

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
    def is_prefill_known(self) -> bool:
        """Whether the prefill speed is more than the prior's guess."""
        return self.prefill_samples >= KNOWN_SAMPLES

    @property
    def is_decode_known(self) -> bool:
        """Whether the decode step is more than the prior's guess."""
        return self.decode_samples >= KNOWN_SAMPLES

    @property
    def samples(self) -> int:
        """Prefills and decodes learned from."""
        return self.prefill_samples + self.decode_samples

    @property
    def prefill_samples(self) -> int:
        """Prefills learned from."""
        return self._prefill.samples

    @property
    def decode_samples(self) -> int:
        """Decodes learned from."""
        return self._decode.samples
