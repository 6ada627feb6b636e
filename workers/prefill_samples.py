"""Prefills as they were seen, kept until it is known how many tokens they really were. No I/O, no clock.

A first token shows when a prefill was done; only the answer's end says how many tokens the prompt had and how many of
them came out of the engine's prefix cache, which cost nothing. First tokens that come in one step of the engine were
one piece of prefill, and are learned as one.
"""

from collections.abc import Callable
from typing import Final

#: First tokens this close together came from one step of the engine.
SAME_STEP_S: Final = 0.003


class Piece:
    """One piece of prefill: of one request, or of several that one step answered."""

    def __init__(self, begun_s: float, done_s: float) -> None:
        self.begun_s = begun_s
        self.done_s = done_s
        self.tokens = 0
        self.unsettled = 0


class PrefillSamples:
    """Hands each piece of prefill to `learn(tokens, seconds)` once all its requests have ended."""

    def __init__(self, learn: Callable[[float, float], None]) -> None:
        self._learn = learn
        self._newest: Piece | None = None

    def first_token(self, *, dispatched_s: float, alone_since_s: float, now: float) -> Piece:
        """Note a request's first token; returns the piece it belongs to.

        `dispatched_s`: when the engine got it; `alone_since_s`: since when nobody was before it in the prefill line.
        """
        piece = self._newest
        if piece is None or now - piece.done_s > SAME_STEP_S or dispatched_s > piece.done_s:
            piece = self._newest = Piece(max(dispatched_s, alone_since_s), now)
        piece.done_s = now
        piece.unsettled += 1
        return piece

    def settle(self, piece: Piece, tokens: int) -> None:
        """One request of a piece has ended; `tokens` of its prompt had to be prefilled."""
        piece.tokens += tokens
        piece.unsettled -= 1
        if piece.unsettled == 0:
            if self._newest is piece:
                self._newest = None
            if piece.tokens:
                self._learn(piece.tokens, piece.done_s - piece.begun_s)
