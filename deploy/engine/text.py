"""What a simulated engine says: tokens of exactly four bytes that need no JSON escaping, the same for the same seed.

Four bytes a token is also how prompts are counted, so an answer sent back as a prompt counts what it counted.
"""

import math
import random
import zlib
from typing import Final

TOKEN_BYTES: Final = 4
_POOL_TOKENS: Final = 4096
_WORDS: Final = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use air arc bay cut dam dry ebb far fed few fin fit fix gap key lay lid"
)


class TokenText:
    """A ring of tokens; an answer is the part of it that begins at the answer's own offset.

    >>> text = TokenText(seed=1)
    >>> len(text.tokens(7, 3))
    12
    >>> text.tokens(7, 3) == text.tokens(7, 1) + text.tokens(8, 2)
    True
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        words = _WORDS.split()
        pool = "".join(" " + draw.choice(words) for _ in range(_POOL_TOKENS)).encode()
        self._ring = pool + pool

    def tokens(self, position: int, count: int) -> bytes:
        """`count` (≥ 0) tokens from `position` (≥ 0) on."""
        start = position % _POOL_TOKENS * TOKEN_BYTES
        piece = self._ring[start : start + count * TOKEN_BYTES]
        if len(piece) == count * TOKEN_BYTES:
            return piece
        whole = self._ring[start : start + _POOL_TOKENS * TOKEN_BYTES]
        return (whole * (count // _POOL_TOKENS + 1))[: count * TOKEN_BYTES]


def digest(seed: int, prompt: bytes) -> int:
    """A number in [0, 2³²) that stands for a prompt under a seed."""
    return zlib.crc32(prompt, seed)


def draw_output_tokens(mean: float, number: int) -> int:
    """Answer length drawn from a geometric distribution (≥ 1, mean `mean`), the same for the same number.

    >>> lengths = [draw_output_tokens(128.0, number) for number in range(4000)]
    >>> min(lengths) >= 1, 120 < sum(lengths) / 4000 < 136
    (True, True)
    """
    if mean <= 1:
        return 1
    # The exponential law rounded up is the geometric one, with mean 1 / (1 - e^(-rate)).
    return int(random.Random(number).expovariate(-math.log1p(-1 / mean))) + 1
