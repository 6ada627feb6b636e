"""Decodes as they were seen, and what of them prefills took. No I/O, no clock.

While a prompt is prefilled, those that decode get one token for a whole piece of prefill. What is left of an answer's
time once the prefills it met are taken out is its own steps: these are learned, so that equal engines learn equal
steps whatever comes their way; how much the prefills take is learned apart.
"""

from typing import Final, Protocol

import msgspec

from workers.prefill_samples import SAME_STEP_S

#: Of an answer's tokens and time less than this share left by prefills says nothing of a step.
LEAST_SHARE: Final = 0.1


class Learner(Protocol):
    """Who learns from decodes."""

    def learn_decode_step(self, running: float, seconds: float) -> None:
        """A step took `seconds` on average, with `running` requests on average."""

    def learn_interruptions(self, own_s: float, seconds: float) -> None:
        """Of a decode's `seconds`, prefills left `own_s`."""


class Mark(msgspec.Struct, frozen=True):
    """Where the sums stood when a decode began."""

    at_s: float
    decoding: float
    prefilling_s: float
    pieces: int


class DecodeSamples:
    """Sums over time: of the number of requests that decode, of the time that something was being prefilled."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._at_s = 0.0
        self._decoding = 0.0
        self._prefilling_s = 0.0
        self._pieces = 0
        self._newest_piece_s = 0.0

    def elapse(self, now: float, *, decoding: int, is_prefilling: bool) -> None:
        """Until `now` so many requests have decoded, and something was prefilled or not."""
        if now > self._at_s:
            self._decoding += decoding * (now - self._at_s)
            self._prefilling_s += is_prefilling * (now - self._at_s)
            self._at_s = now

    def begin(self, now: float) -> Mark:
        """A request has its first token: a piece of prefill is done, and it decodes from now on."""
        if now - self._newest_piece_s > SAME_STEP_S:
            self._pieces += 1
            self._newest_piece_s = now
        return Mark(now, self._decoding, self._prefilling_s, self._pieces)

    def interrupted_s(self, mark: Mark) -> float:
        """Seconds since `mark` in which something was being prefilled."""
        return self._prefilling_s - mark.prefilling_s

    def end(self, mark: Mark, now: float, output_tokens: int) -> None:
        """A decode that began at `mark` has ended well, with so many tokens, the first one included."""
        seconds, tokens = now - mark.at_s, output_tokens - 1
        if seconds <= 0 or tokens <= 0:
            return
        own_s = seconds - self.interrupted_s(mark)
        steps = tokens - (self._pieces - mark.pieces)
        self._learner.learn_interruptions(own_s, seconds)
        if own_s > LEAST_SHARE * seconds and steps > LEAST_SHARE * tokens:
            self._learner.learn_decode_step((self._decoding - mark.decoding) / seconds, own_s / steps)
