"""What a proxy must know of a request to choose for it: model, size, stream. Nothing else of a body is looked at.

The body is decoded once and only as deep as that; what it means beyond is the engine's business, errors included.
"""

import re
from typing import Final

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
    """Whether the prompt is its text, once: media and what an engine remembers have tokens that no byte here tells."""
    sequences: int = 1
    """Answers asked for: `n` for each prompt."""
    output_cap: int | None = None
    is_stream: bool = False
    wants_usage: bool = True
    """Whether the client has spoken of the usage event itself: then nothing is asked for in its name."""
    tells_usage: bool = True
    """Whether the answer is to tell its usage as it was asked for; not a stream whose client does not ask for it."""


class _Body(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"null")
    stream: msgspec.Raw = msgspec.Raw(b"null")
    stream_options: msgspec.Raw = msgspec.Raw(b"null")
    max_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"null")
    n: msgspec.Raw = msgspec.Raw(b"null")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    documents: msgspec.Raw = msgspec.Raw(b"")
    # what templates put beside these into a prompt
    tools: msgspec.Raw = msgspec.Raw(b"")
    functions: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    suffix: msgspec.Raw = msgspec.Raw(b"")
    query: msgspec.Raw = msgspec.Raw(b"")
    queries: msgspec.Raw = msgspec.Raw(b"")
    text_1: msgspec.Raw = msgspec.Raw(b"")
    text_2: msgspec.Raw = msgspec.Raw(b"")
    # what makes a prompt longer or shorter than its text
    prompt_embeds: msgspec.Raw = msgspec.Raw(b"null")
    previous_response_id: msgspec.Raw = msgspec.Raw(b"null")
    conversation: msgspec.Raw = msgspec.Raw(b"null")
    chat_template: msgspec.Raw = msgspec.Raw(b"null")
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw(b"null")


_NULL: Final = msgspec.Raw(b"null")

_decode = msgspec.json.Decoder(_Body).decode

#: How a list of prompts begins, up to the first byte of its first item.
_FIRST_ITEM: Final = re.compile(rb"\[\s*(.)", re.DOTALL)

#: Parts of a message that are no text; their tokens depend on the engine.
_MEDIA: Final = (
    b'"image_url"',
    b'"input_image"',
    b'"image_embeds"',
    b'"audio_url"',
    b'"input_audio"',
    b'"audio_embeds"',
    b'"video_url"',
    b'"media_type"',
    b'"file"',
)

#: Characters of a model's name: vLLM names are paths, of files at most.
LONGEST_MODEL: Final = 1024

#: Bytes of the longest such name as JSON, each character escaped as two halves: no other value is longer.
_LONGEST_VALUE: Final = 12 * LONGEST_MODEL + 2

#: More answers than this to one prompt are not believed.
MOST_SEQUENCES: Final = 1024


def read_facts(path: str, body: bytes) -> Facts:
    """Facts of a JSON body. Raises BadRequest if it is no JSON object, or its model or `stream` of a wrong type.

    >>> read_facts("/v1/completions", b'{"model":"m","prompt":"abcd","max_tokens":5}').output_cap
    5
    """
    try:
        decoded = _decode(body)
        model, stream, options, number = map(_value, (decoded.model, decoded.stream, decoded.stream_options, decoded.n))
        output_cap = 0 if path in NO_DECODE else _cap(decoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"the body is not a JSON object: {fault}") from fault
    if model is not None and not (isinstance(model, str) and len(model) <= LONGEST_MODEL):
        raise BadRequest(f"model must be a string of at most {LONGEST_MODEL} characters", "model")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequest("stream must be a boolean", "stream")  # some engines would take "true" for one
    is_stream = stream is True
    has_usage_event = is_stream and path in USAGE_ON_REQUEST
    sequences = _number(number, largest=MOST_SEQUENCES) * _prompts(bytes(decoded.prompt))
    prompt = b"".join((decoded.messages, decoded.prompt, decoded.input, decoded.documents))
    prompt_text, beside = count_text(prompt), _beside(decoded)
    has_media = 2 * len(prompt_text) <= len(prompt) or any(kind in prompt for kind in _MEDIA)
    return Facts(
        model=model,
        text=prompt_text + count_text(beside) if beside else prompt_text,
        exact_tokens=count_token_ids(prompt),
        is_text_only=not has_media and not _is_more_than_its_text(decoded),
        sequences=sequences,
        output_cap=output_cap,
        is_stream=is_stream,
        wants_usage=not (has_usage_event and options is None),
        tells_usage=not has_usage_event or (isinstance(options, dict) and options.get("include_usage") is True),
    )


def _beside(body: _Body) -> bytes:
    """What an engine puts into a prompt beside what it is about: an agent's tools may be all but a hundredth of it."""
    return b"".join(
        (
            body.tools,
            body.functions,
            body.system,
            body.instructions,
            body.suffix,
            body.query,
            body.queries,
            body.text_1,
            body.text_2,
        )
    )


def _is_more_than_its_text(body: _Body) -> bool:
    """Whether a prompt's tokens come from elsewhere too, are cut, or are a query's once for each document."""
    shaping = (
        body.prompt_embeds,
        body.previous_response_id,
        body.conversation,
        body.chat_template,
        body.truncate_prompt_tokens,
    )
    return any(each != _NULL for each in shaping) or bool(memoryview(body.query))


def _value(raw: msgspec.Raw) -> object:
    """A field's value; one that is too long to mean anything stays as it is, and is of no type that is asked for."""
    text = bytes(raw)
    return msgspec.json.decode(text) if len(text) <= _LONGEST_VALUE else text


def _number(value: object, *, largest: int) -> int:
    """A whole number from 1 to `largest`; 1 for anything else, which is the engine's to refuse."""
    return value if type(value) is int and 1 <= value <= largest else 1


def _prompts(prompt: bytes) -> int:
    """How many prompts a `prompt` has: a list of strings or of lists of token ids has several.

    What its first item is, all are taken for: a list of both is the engine's to refuse.

    >>> _prompts(b'["a", "b"]'), _prompts(b"[[1, 2], [3]]"), _prompts(b"[1, 2, 3]"), _prompts(b'"a"')
    (2, 2, 1, 1)
    """
    first = _FIRST_ITEM.match(prompt)
    if first is not None and first[1] == b'"':
        prompt = prompt.replace(rb"\\", b"")  # an escaped backslash escapes no quote
        return (prompt.count(b'"') - prompt.count(rb"\"")) // 2
    return prompt.count(b"[") - 1 if first is not None and first[1] == b"[" else 1


def _cap(body: _Body) -> int | None:
    """Smallest limit on the answer's tokens that the request sets; nonsense is the engine's to refuse."""
    limits = map(_value, (body.max_tokens, body.max_completion_tokens, body.max_output_tokens))
    return min((limit for limit in limits if type(limit) is int and 0 < limit <= LARGEST), default=None)
