"""What a proxy must know of a request to choose for it: model, size, stream. Nothing else of a body is looked at.

The body is decoded once and only as deep as that; what it means beyond is the engine's business, errors included.
"""

from typing import Any, Final

import msgspec

from bus.record import LARGEST

#: Paths whose answer can be an event stream in which an engine sends a usage event when it is asked to.
USAGE_ON_REQUEST: Final = frozenset({"/v1/chat/completions", "/v1/completions"})

#: Paths that only read a prompt: there is no decode.
NO_DECODE: Final = frozenset({"/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/v1/moderations"})


class BadRequest(Exception):
    """A body that cannot be routed; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a request."""

    model: str | None = None
    text_bytes: int = 0
    """Bytes of the prompt as it stands in the body."""
    output_cap: int | None = None
    is_stream: bool = False
    wants_usage: bool = True
    """Whether the client has spoken of the usage event itself: then nothing is asked for in its name."""


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    documents: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Body).decode


def read_facts(path: str, body: bytes) -> Facts:
    """Facts of a JSON body. Raises BadRequest if it is no JSON object or its model is no string.

    >>> read_facts("/v1/completions", b'{"model":"m","prompt":"abcd","max_tokens":5}').output_cap
    5
    """
    try:
        decoded = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"the body is not a JSON object: {fault}") from fault
    if decoded.model is not None and not isinstance(decoded.model, str):
        raise BadRequest("model must be a string", "model")
    is_stream = decoded.stream is True
    return Facts(
        model=decoded.model,
        text_bytes=sum(
            len(bytes(part)) for part in (decoded.messages, decoded.prompt, decoded.input, decoded.documents)
        ),
        output_cap=0 if path in NO_DECODE else _cap(decoded),
        is_stream=is_stream,
        wants_usage=not (is_stream and decoded.stream_options is None and path in USAGE_ON_REQUEST),
    )


def _cap(body: _Body) -> int | None:
    """Smallest limit on the answer's tokens that the request sets; nonsense is the engine's to refuse."""
    limits = (body.max_tokens, body.max_completion_tokens, body.max_output_tokens)
    return min((limit for limit in limits if type(limit) is int and 0 < limit <= LARGEST), default=None)
