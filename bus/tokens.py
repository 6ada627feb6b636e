"""How many tokens a prompt has, by its bytes: counted by the proxy, learned by the worker, shared in the record.

One ratio of bytes to tokens will not do: with one tokenizer a token is about five bytes of English, three of code and
two of Chinese. So bytes are counted in three classes, each with a rate of its own. No I/O, no clock.
"""

import re
from collections.abc import Iterator
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

_CHUNK_BYTES: Final = 64 * 1024

#: What lists of token ids have beside their brackets.
_BLANKS: Final = b" \t\r\n"
_FLAT: Final = b"-0123456789," + _BLANKS


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

    def __add__(self, other: "TextBytes") -> "TextBytes":
        """Bytes of both texts."""
        return TextBytes(self.letters + other.letters, self.symbols + other.symbols, self.wide + other.wide)


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
    letters = symbols = wide = 0
    for chunk in _chunks(_without_media(raw)):
        plain, escapes = _ESCAPE.subn(b"", chunk) if b"\\u" in chunk else (chunk, 0)
        beyond = len(plain.translate(None, _ASCII))
        words = len(plain) - len(plain.translate(None, _LETTERS))
        letters += words
        symbols += len(plain) - words - beyond
        wide += beyond + escapes * _ESCAPED_BYTES
    return TextBytes(letters, symbols, wide)


def count_token_ids(raw: bytes) -> int | None:
    """Tokens of a prompt that is given as token ids, or as lists of them; None for any other prompt.

    >>> count_token_ids(b"[1, 2, 3]"), count_token_ids(b"[[1, 2], [3]]"), count_token_ids(b'["a"]')
    (3, 3, None)
    """
    if raw[:1] != b"[" or b'"' in raw:
        return None
    nesting = raw.translate(None, _FLAT)
    lists = nesting.count(b"[")
    if len(nesting) != 2 * lists or nesting.count(b"[]") < lists - 1:  # there is something else, or a list too deep
        return None
    try:
        _check(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return raw.count(b",") + 1 - raw.translate(None, _BLANKS).count(b"[]")


#: Reads past a JSON value and builds nothing of it.
_check = msgspec.json.Decoder(msgspec.Raw).decode


def _without_media(raw: bytes) -> bytes:
    """The same JSON without the strings that are base64 media.

    A long string covers the byte that is as far behind the last quote as it is long: nothing else is looked at.
    """
    kept, done, at = [], 0, _MEDIA_BYTES - 1
    while at < len(raw):
        start = raw.rfind(b'"', max(at - _MEDIA_BYTES, 0), at) + 1
        end = raw.find(b'"', at)
        end = len(raw) if end < 0 else end
        if _is_media(raw[start:end]):
            kept.append(memoryview(raw)[done:start])
            done = end
        at = end + _MEDIA_BYTES
    return b"".join([*kept, memoryview(raw)[done:]]) if kept else raw


def _is_media(string: bytes) -> bool:
    return len(string) >= _MEDIA_BYTES and string.isascii() and b" " not in string and b"\\" not in string


def _chunks(raw: bytes) -> Iterator[bytes]:
    """Pieces that are counted one by one, so that a count needs little memory; no escape is cut."""
    start = 0
    while start < len(raw):
        end = start + _CHUNK_BYTES
        if end < len(raw):
            escape = raw.rfind(b"\\", end - 5, end)
            end = end if escape < 0 else escape
        yield raw[start:end]
        start = end
