"""How many tokens a prompt has, by its bytes: counted by the proxy, learned by the worker, shared in the record.

One ratio of bytes to tokens will not do: with one tokenizer a token is about five bytes of English, three of code and
two of Chinese. So bytes are counted in three classes, each with a rate of its own. No I/O, no clock.
"""

import re
from typing import Final

import msgspec

#: ASCII letters and the space: words.
_LETTERS: Final = bytes(b for b in range(128) if chr(b).isalpha() or chr(b) == " ")
_ASCII: Final = bytes(range(128))

#: JSON's escape of a character beyond ASCII; as UTF-8 it has about three bytes.
_ESCAPE: Final = re.compile(rb"\\u[0-9a-fA-F]{4}")
_ESCAPED_BYTES: Final = 3

#: A JSON string at least this long, all ASCII and without a space or an escape, is encoded media and no text.
_MEDIA_BYTES: Final = 1024


class TextBytes(msgspec.Struct, frozen=True):
    """Bytes of a prompt by class."""

    letters: int = 0
    """ASCII letters and spaces."""
    symbols: int = 0
    """All other ASCII: digits, punctuation, line ends."""
    wide: int = 0
    """UTF-8 bytes of everything else."""

    def __len__(self) -> int:
        """All bytes of text."""
        return self.letters + self.symbols + self.wide


class TokenRates(msgspec.Struct, frozen=True):
    """Tokens of a byte, by class."""

    letters: float = 0.22
    symbols: float = 0.45
    wide: float = 0.33

    def tokens(self, text: TextBytes) -> int:
        """Estimated tokens of a text, at least 1.

        >>> TokenRates(0.2, 0.5, 0.3).tokens(TextBytes(letters=100, symbols=20, wide=10))
        33
        """
        estimate = text.letters * self.letters + text.symbols * self.symbols + text.wide * self.wide
        return max(1, round(estimate))


def count_text(raw: bytes) -> TextBytes:
    r"""Bytes of text in a piece of JSON, by class; media in base64 do not count.

    >>> count_text(b'"Hello, \xe4\xb8\x96"'), count_text(rb'"\u4e16"')
    (TextBytes(letters=6, symbols=3, wide=3), TextBytes(letters=0, symbols=2, wide=3))
    """
    if len(raw) >= _MEDIA_BYTES:
        raw = _without_media(raw)
    escapes = 0
    if b"\\u" in raw:
        raw, escapes = _ESCAPE.subn(b"", raw)
    wide = len(raw.translate(None, _ASCII))
    letters = len(raw) - len(raw.translate(None, _LETTERS))
    return TextBytes(letters, len(raw) - letters - wide, wide + escapes * _ESCAPED_BYTES)


def count_token_ids(raw: bytes) -> int | None:
    """Tokens of a prompt that is given as token ids, or as lists of them; None for any other prompt.

    >>> count_token_ids(b"[1, 2, 3]"), count_token_ids(b"[[1, 2], [3]]"), count_token_ids(b'["a"]')
    (3, 3, None)
    """
    if raw[:1] != b"[" or b'"' in raw:
        return None
    try:
        ids = _decode_ids(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return sum(1 if isinstance(item, int) else len(item) for item in ids)


_decode_ids = msgspec.json.Decoder(list[int | list[int]]).decode


def _without_media(raw: bytes) -> bytes:
    """The same JSON without the strings that are base64 media."""
    strings = raw.split(b'"')
    if max(map(len, strings)) < _MEDIA_BYTES:
        return raw
    return b'"'.join(b"" if _is_media(string) else string for string in strings)


def _is_media(string: bytes) -> bool:
    return len(string) >= _MEDIA_BYTES and string.isascii() and b" " not in string and b"\\" not in string
