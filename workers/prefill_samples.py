"""Prefills as they were seen, kept until it is known how many tokens they really were. No I/O, no clock.

A first token shows when a prefill was done; only the answer's end says how many tokens the prompt had and how many of
them came out of the engine's prefix cache, which cost nothing. First tokens that come in one step of the engine were
one piece of prefill, and are learned as one. So is a prompt with those behind it in the line whose first tokens are
seen before its own: they were prefilled in its time, or in its last step and only read earlier.
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
        self.is_open = False
        """Its first prompt has no first token yet."""


class PrefillSamples:
    """Hands each piece of prefill to `learn(tokens, seconds)` once all its requests have ended."""

    def __init__(self, learn: Callable[[float, float], None]) -> None:
        self._learn = learn
        self._newest: Piece | None = None

    def first_token(self, *, dispatched_s: float, alone_since_s: float, now: float, is_head: bool) -> Piece:
        """Note a request's first token; returns the piece it belongs to.

        `dispatched_s`: when the engine got it; `alone_since_s`: since when the first of the prefill line has had the
        server for itself; `is_head`: whether it is that first one.
        """
        piece = self._newest
        if piece is None or not (piece.is_open or self._is_same_step(piece, dispatched_s, now)):
            piece = self._newest = Piece(max(dispatched_s, alone_since_s) if is_head else alone_since_s, now)
        piece.is_open = not is_head
        piece.done_s = now
        piece.unsettled += 1
        return piece

    def _is_same_step(self, piece: Piece, dispatched_s: float, now: float) -> bool:
        return now - piece.done_s <= SAME_STEP_S and dispatched_s <= piece.done_s

    def head_left(self) -> None:
        """The first of the line has left without a first token: what was prefilled in its time cannot be told apart."""
        if self._newest is not None and self._newest.is_open:
            self._newest = None

    def settle(self, piece: Piece, tokens: int) -> None:
        """One request of a piece has ended; `tokens` of its prompt had to be prefilled."""
        piece.tokens += tokens
        piece.unsettled -= 1
        if piece.unsettled == 0 and not piece.is_open:
            if self._newest is piece:
                self._newest = None
            if piece.tokens:
                self._learn(piece.tokens, piece.done_s - piece.begun_s)
