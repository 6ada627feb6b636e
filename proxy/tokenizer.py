"""Exact prompt lengths, where a tokenizer.json is configured for a model; without one, learned rates are used.

The package `tokenizers` is an optional extra (`pip install forebay[tokenizer]`) and is imported only here.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bus.errors import ForebayError

#: A prompt longer than this is counted in a thread: the tokenizer lets others run, the relay must not wait.
IN_THREAD_BYTES: Final = 4096

#: A prompt longer than this is estimated: counting it would take longer than knowing it is worth.
LONGEST_BYTES: Final = 1_000_000


class TokenizerUnusable(ForebayError):
    """A tokenizer that is configured and cannot be loaded."""


class _Prompt(msgspec.Struct):
    messages: Any = None
    prompt: Any = None
    input: Any = None
    system: Any = None
    instructions: Any = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    functions: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Prompt).decode


class Tokenizers:
    """Tokenizers by model; `configured` are MODEL=FILE. Raises TokenizerUnusable."""

    def __init__(self, configured: Sequence[str] = ()) -> None:
        self._tokenizers: dict[str, Any] = {}
        for item in configured:
            model, separator, path = item.partition("=")
            if not separator or not model or not path:
                raise TokenizerUnusable(f"tokenizer {item!r}: must be MODEL=FILE")
            self._tokenizers[model] = _load(path)

    async def count(self, model: str | None, body: bytes) -> int | None:
        """Tokens of the text in a request's body; None where no tokenizer is configured or it cannot say."""
        tokenizer = self._tokenizers.get(model or "")
        if tokenizer is None or len(body) > LONGEST_BYTES:
            return None
        if len(body) <= IN_THREAD_BYTES:
            return _count(tokenizer, body)
        return await asyncio.to_thread(_count, tokenizer, body)


def _load(path: str) -> Any:  # noqa: ANN401 - the package has no types
    try:
        from tokenizers import Tokenizer
    except ImportError as fault:
        raise TokenizerUnusable(
            "a tokenizer is configured, but the package is not there: pip install tokenizers"
        ) from fault
    try:
        return Tokenizer.from_file(path)
    except Exception as fault:  # the package raises bare Exception
        raise TokenizerUnusable(f"tokenizer {path}: {fault}") from fault


def _count(tokenizer: Any, body: bytes) -> int | None:  # noqa: ANN401
    try:
        prompt = _decode(body)
        parts = (prompt.messages, prompt.prompt, prompt.input, prompt.system, prompt.instructions)
        texts = [text for part in parts for text in _texts(part)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts += [bytes(schemas).decode() for schemas in (prompt.tools, prompt.functions) if memoryview(schemas)]
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts)) if texts else None


def _texts(part: object) -> Iterator[str]:
    """Strings that an engine tokenizes: prompts, the text of messages, and the calls of tools in them as JSON."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, list):
        for item in part:
            yield from _texts(item)
    elif isinstance(part, dict):
        yield from _texts(part.get("content", part.get("text")))
        if part.get("tool_calls"):
            yield msgspec.json.encode(part["tool_calls"]).decode()
