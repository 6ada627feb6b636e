"""Synthetic requests: English-like text of a wanted number of tokens, and the bytes of a chat completion around it.

One text is made once from a seed; every prompt is a slice of it, so a request costs microseconds. The text holds
nothing that JSON escapes. Prompts of one replay begin differently, save where the trace says that they share a prefix.
"""

import random
from typing import Final

import msgspec

from deploy.replay.traces import PREFIX_BLOCK_TOKENS, TraceRow

BYTES_PER_TOKEN: Final = 4
"""Bytes of English text a token of common tokenizers stands for, about."""

_TEXT_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN
_STRIDE: Final = 7919  # prime and longer than a block: neighbouring ids take text that does not overlap
_VOCABULARY: Final = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years much where your way down
should because long each just state those people too little good world make very year still see own work men
day get here between both life being under three never know same last another while us might great go come
since against right came take used himself few house use during without again place around however home small
found thought went say part once general high upon school every water question answer number write table
reason letter paper story simple explain example
"""


class PromptMaker:
    """Makes the body of every request of a replay; equal seeds make equal bodies."""

    def __init__(
        self,
        model: str,
        *,
        seed: int = 0,
        stream: bool = True,
        max_output: int | None = None,
        ignore_eos: bool = False,
    ) -> None:
        self._seed = seed
        self._text = make_text(_TEXT_BYTES, seed)
        self._max_output = max_output
        self._head = b'{"model":' + msgspec.json.encode(model) + b',"messages":[{"role":"user","content":"'
        self._options = b',"stream":true,"stream_options":{"include_usage":true}}' if stream else b',"stream":false}'
        if ignore_eos:
            self._options = b',"ignore_eos":true' + self._options

    def body(self, number: int, row: TraceRow) -> bytes:
        """JSON of request `number` (counted over the replay) that asks for the row's lengths."""
        output = row.output_tokens if self._max_output is None else min(row.output_tokens, self._max_output)
        return b'%b%b"}],"max_tokens":%d%b' % (self._head, self.prompt(number, row), output, self._options)

    def prompt(self, number: int, row: TraceRow) -> bytes:
        """ASCII text of `row.prompt_tokens` × 4 bytes; rows with equal leading prefix ids begin with equal text."""
        size = row.prompt_tokens * BYTES_PER_TOKEN
        parts = [self._block(block) for block in row.prefix_ids[: -(-size // _BLOCK_BYTES)]]
        known = len(parts) * _BLOCK_BYTES
        if known < size:
            parts.append(self._slice(b"%d " % number, (number + self._seed) * _STRIDE, size - known))
        return b"".join(parts)[:size]

    def _block(self, prefix_id: int) -> bytes:
        return self._slice(b"p%d " % prefix_id, prefix_id * _STRIDE, _BLOCK_BYTES)

    def _slice(self, mark: bytes, offset: int, size: int) -> bytes:
        """`size` bytes that begin with a mark no other slice has, then run through the text and on from its start."""
        parts = [mark]
        missing = size - len(mark)
        at = offset % len(self._text)
        while missing > 0:
            part = self._text[at : at + missing]
            parts.append(part)
            missing -= len(part)
            at = 0
        return b"".join(parts)[:size]


def make_text(size: int, seed: int) -> bytes:
    """`size` bytes of words and full stops, the same for the same seed.

    >>> make_text(30, 1) == make_text(30, 1), make_text(30, 1) == make_text(30, 2), len(make_text(30, 1))
    (True, False, 30)
    """
    rng = random.Random(seed)
    words = rng.choices(_VOCABULARY.split(), k=size // 4 + 2)
    for at in range(11, len(words), 12):
        words[at] += "."
    return " ".join(words).encode("ascii").ljust(size)[:size]
