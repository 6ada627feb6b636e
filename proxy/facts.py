"""What a proxy must know of a request to choose for it: model, size, stream. Nothing else of a body is looked at.

The body is decoded once and only as deep as that; what it means beyond is the engine's business, errors included.
"""

from typing import Any, Final

import msgspec

from bus.record import LARGEST
from bus.tokens import TextBytes, count_text, count_token_ids

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
    text: TextBytes = TextBytes()
    """Bytes of the prompt, by class."""
    exact_tokens: int | None = None
    """Tokens of a prompt that came as token ids."""
    is_text_only: bool = True
    """Whether the prompt is nothing but text: media have tokens that no byte tells."""
    sequences: int = 1
    """Answers asked for: `n` for each prompt."""
    output_cap: int | None = None
    is_stream: bool = False
    wants_usage: bool = True
    """Whether the client has spoken of the usage event itself: then nothing is asked for in its name."""
    tells_usage: bool = True
    """Whether the answer is to tell its usage as it was asked for; not a stream whose client does not ask for it."""


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    documents: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Body).decode
_decode_prompts = msgspec.json.Decoder(list[Any]).decode

#: Parts of a message that are no text; their tokens depend on the engine.
_MEDIA: Final = (b'"image_url"', b'"input_audio"', b'"input_image"', b'"video_url"', b'"file"')

#: Characters of a model's name: vLLM names are paths, of files at most.
LONGEST_MODEL: Final = 1024

#: More answers than this to one prompt are not believed.
MOST_SEQUENCES: Final = 1024


def read_facts(path: str, body: bytes) -> Facts:
    """Facts of a JSON body. Raises BadRequest if it is no JSON object, or its model or `stream` of a wrong type.

    >>> read_facts("/v1/completions", b'{"model":"m","prompt":"abcd","max_tokens":5}').output_cap
    5
    """
    try:
        decoded = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"the body is not a JSON object: {fault}") from fault
    if decoded.model is not None and not (isinstance(decoded.model, str) and len(decoded.model) <= LONGEST_MODEL):
        raise BadRequest(f"model must be a string of at most {LONGEST_MODEL} characters", "model")
    if decoded.stream is not None and not isinstance(decoded.stream, bool):
        raise BadRequest("stream must be a boolean", "stream")  # some engines would take "true" for one
    is_stream = decoded.stream is True
    has_usage_event = is_stream and path in USAGE_ON_REQUEST
    options = decoded.stream_options
    prompt = b"".join((bytes(decoded.messages), bytes(decoded.prompt), bytes(decoded.input), bytes(decoded.documents)))
    text = count_text(prompt)
    return Facts(
        model=decoded.model,
        text=text,
        exact_tokens=count_token_ids(prompt),
        is_text_only=2 * len(text) > len(prompt) and not any(kind in prompt for kind in _MEDIA),
        sequences=_number(decoded.n, largest=MOST_SEQUENCES) * _prompts(bytes(decoded.prompt)),
        output_cap=0 if path in NO_DECODE else _cap(decoded),
        is_stream=is_stream,
        wants_usage=not (has_usage_event and options is None),
        tells_usage=not has_usage_event or (isinstance(options, dict) and options.get("include_usage") is True),
    )


def _number(value: object, *, largest: int) -> int:
    """A whole number from 1 to `largest`; 1 for anything else, which is the engine's to refuse."""
    return value if type(value) is int and 1 <= value <= largest else 1


def _prompts(prompt: bytes) -> int:
    """How many prompts a `prompt` has: a list of strings or of lists of token ids has several."""
    if prompt[:1] != b"[":
        return 1
    try:
        return max(1, sum(isinstance(item, (str, list)) for item in _decode_prompts(prompt)))
    except (msgspec.DecodeError, RecursionError):
        return 1


def _cap(body: _Body) -> int | None:
    """Smallest limit on the answer's tokens that the request sets; nonsense is the engine's to refuse."""
    limits = (body.max_tokens, body.max_completion_tokens, body.max_output_tokens)
    return min((limit for limit in limits if type(limit) is int and 0 < limit <= LARGEST), default=None)
