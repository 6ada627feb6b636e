"""Names of models: what an engine lists, and what clients may say instead. No I/O, no clock.

An alias is the worker's affair, since two engines may call one model by two names: the worker announces the alias
beside the engine's own names, so that proxies find it without being told, and puts the engine's name in its place.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from bus.record import LARGEST

#: Bytes of all names together that a registration carries: one of more than 64 KiB is not sent to readers.
MOST_BYTES: Final = 48 * 1024


class ModelList(msgspec.Struct, frozen=True):
    """What an engine's /v1/models says."""

    names: tuple[str, ...]
    """Models, LoRA adapters among them, and further names of each (llama.cpp: `aliases`)."""
    owner: str = ""
    """`owned_by` of the first: which server this is."""
    context_tokens: int | None = None
    """`max_model_len`, which vLLM and SGLang tell: most tokens of a prompt and its answer; the least of several."""


class _Model(msgspec.Struct):
    id: str
    owned_by: Any = ""
    max_model_len: Any = None
    aliases: Any = ()


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models: Final = msgspec.json.Decoder(_Models).decode


def read_models(body: bytes) -> ModelList:
    """Read the answer of /v1/models; names that would spoil a log or a terminal are left out. Raises ValueError.

    >>> read_models(b'{"data":[{"id":"base","owned_by":"vllm"},{"id":"lora","parent":"base"}]}')
    ModelList(names=('base', 'lora'), owner='vllm', context_tokens=None)
    """
    try:
        models = _decode_models(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ValueError(f"no list of models ({fault})") from fault
    names = [name for model in models for name in (model.id, *_texts(model.aliases)) if name.isprintable()]
    owner = models[0].owned_by if models else ""
    lengths = [each.max_model_len for each in models]
    context_tokens = min((length for length in lengths if type(length) is int and 0 < length <= LARGEST), default=None)
    return ModelList(tuple(dict.fromkeys(names)), owner if isinstance(owner, str) else "", context_tokens)


def fitting(names: Iterable[str]) -> tuple[str, ...]:
    """The first names that together are no larger than a registration may carry."""
    left, kept = MOST_BYTES, []
    for name in names:
        left -= len(name.encode()) + 5
        if left < 0:
            break
        kept.append(name)
    return tuple(kept)


class Aliases:
    """Other names for the models of an engine, each given as NAME=MODEL. Raises ValueError for what is not that."""

    def __init__(self, given: Iterable[str]) -> None:
        self._model_of: dict[str, str] = {}
        for text in given:
            name, separator, model = text.partition("=")
            if not name or not separator or not model:
                raise ValueError(f"{text!r} is not allowed: NAME=MODEL")
            if name in self._model_of:
                raise ValueError(f"{name!r} is given twice")
            self._model_of[name] = model

    def beside(self, served: tuple[str, ...]) -> tuple[str, ...]:
        """The models served, and the aliases of those.

        >>> Aliases(["gpt=tiny", "other=absent"]).beside(("tiny",))
        ('tiny', 'gpt')
        """
        names = (name for name, model in self._model_of.items() if model in served and name not in served)
        return (*served, *names)

    def resolve(self, body: bytes, content_type: str) -> bytes:
        r"""A request's body with the engine's name where an alias stood as its model; every other byte as it was.

        >>> Aliases(["gpt=tiny"]).resolve(b'{"messages": [{"model": "gpt"}],  "model" : "gpt"}', "application/json")
        b'{"messages": [{"model": "gpt"}],  "model" : "tiny"}'
        """
        if not self._model_of:
            return body
        if content_type.lower().startswith("multipart/"):
            return self._resolve_form(body, content_type)
        pieces, done = [], 0
        for start, end in _model_spans(body):  # of two parsers differ in which counts: both are changed
            model = self._model_of.get(_text(body[start:end]))
            if model is not None:
                pieces += [body[done:start], msgspec.json.encode(model)]
                done = end
        return b"".join([*pieces, body[done:]]) if pieces else body

    def _resolve_form(self, body: bytes, content_type: str) -> bytes:
        boundary = _BOUNDARY.search(content_type)
        if boundary is None:
            return body
        delimiter = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1")
        parts = (b"\r\n" + body).split(delimiter, _MOST_PARTS)
        return delimiter.join(map(self._resolve_part, parts))[2:]

    def _resolve_part(self, part: bytes) -> bytes:
        head, separator, value = part.partition(b"\r\n\r\n")
        if _IS_MODEL.search(head) is None:
            return part
        model = self._model_of.get(value.decode("utf-8", "replace").strip())
        return part if model is None else head + separator + model.encode()


_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_IS_MODEL: Final = re.compile(rb'\ncontent-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r|$)', re.IGNORECASE)

#: A proxy refuses a form of more parts.
_MOST_PARTS: Final = 64

#: A key `model`, however it is written, and its value if that is a string that may be a name.
_KEY: Final = re.compile(
    rb'"(?<=[{,\s]")(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"\s*+:\s*+'
    rb'("(?:[^"\\]|\\.){0,12288}+")',
    re.DOTALL,
)
_PLAIN_KEY: Final = re.compile(rb'"model"(?<=[{,\s]"model")\s*+:\s*+("(?:[^"\\]|\\.){0,12288}+")', re.DOTALL)

#: No request has more such keys, at whatever depth: those beyond are not looked at.
_MOST_KEYS: Final = 1024


def _model_spans(body: bytes) -> Iterable[tuple[int, int]]:
    """Where the value of each `model` of the outermost object stands, if it is a string."""
    key = _KEY if b"\\u00" in body else _PLAIN_KEY
    depth, at = 0, 0
    for found in islice(key.finditer(body), _MOST_KEYS):
        depth += _depth(body[at : found.start()])
        at = found.end()
        if depth == 1:
            yield found.span(1)


#: All but what tells how deep a byte stands: brackets, and the quotes that make text of them.
_FLAT: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_STRING: Final = re.compile(rb'"[^"]*+(?:"|\Z)')
_CHUNK_BYTES: Final = 64 * 1024


def _depth(json: bytes) -> int:
    """How many more brackets are opened than closed in a piece of JSON that begins outside of any string."""
    bare = json.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _FLAT).replace(b'""', b"")
    depth, quote = 0, b""
    for start in range(0, len(bare), _CHUNK_BYTES):
        chunk = quote + bare[start : start + _CHUNK_BYTES]
        quote = b'"' if chunk.count(b'"') % 2 else b""
        open_ = _STRING.sub(b"", chunk)
        depth += open_.count(b"{") + open_.count(b"[") - open_.count(b"}") - open_.count(b"]")
    return depth


def _text(string: bytes) -> str:
    """Value of a JSON string; one that cannot be read is like no name."""
    try:
        return msgspec.json.decode(string, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
