"""What a worker looks for in an event stream, without decoding it: the first event, the usage, an error. No I/O.

Whole events pass as they came. Only a read that carries a `usage`, or that ends inside an event, is looked at closer.
"""

from typing import Any, Final

import msgspec

#: A started event longer than this is passed on unfinished: it is no usage event.
LONGEST_HELD_EVENT: Final = 256 * 1024

#: More tokens than any request has: an engine that counts more has lost count, and nothing is learned from it.
MOST_TOKENS: Final = 100_000_000

#: With these /v1/responses begins before vLLM's engine has taken the request: they say that it has come, and no more.
_PROLOGUE: Final = ("response.created", "response.queued", "response.in_progress")

#: With these it says that the request failed.
_FAILURES: Final = ("response.failed", "error")

_GOOD_ENDS: Final = (b"[DONE]", b'"finish_reason":"', b'"finish_reason": "', b'"usage":{', b'"usage": {')
_ENDS: Final = (b"\n\n", b"\r\n\r\n")


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request as its engine counted them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    is_of_completion: bool = True
    """In the words of completions; an engine's other APIs may tell cached tokens where those do not."""


class EventTap:
    """Stands in an event stream: `feed` takes what arrived and returns what may pass.

    With `strips_usage` the usage event is kept out: an event with empty `choices` and a `usage`.

    >>> tap = EventTap(strips_usage=True)
    >>> tap.feed(b'data: {"choices":[{"index":0}]}\\n\\ndata: {"choices":[],"usage":{"prompt_tokens":3}}\\n\\n')
    b'data: {"choices":[{"index":0}]}\\n\\n'
    >>> tap.usage().prompt_tokens
    3
    """

    def __init__(self, *, strips_usage: bool) -> None:
        self.has_error = False
        """An error event has passed."""
        self._strips_usage = strips_usage
        self._tail = b""
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the stream; return the whole events that may pass."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if not data.endswith(_ENDS):
            cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
            if len(data) - cut <= LONGEST_HELD_EVENT:
                data, self._tail = data[:cut], data[cut:]
        if b'{"error"' in data or b'"response.failed"' in data:
            self.has_error = self.has_error or any(is_error_event(event) for event in _events(data))
        if b'"usage"' in data and data.count(b'"usage"') > data.count(b'"usage":null'):
            return self._take_usage(data)
        if b'"timings"' in data:
            return self._take_usage(data)
        return data

    def end(self) -> bytes:
        """Return what was held back; the stream has ended."""
        tail, self._tail = self._tail, b""
        return tail

    def usage(self) -> Usage | None:
        """Usage that the stream carried last; None if it carried none."""
        return self._usage

    def _take_usage(self, data: bytes) -> bytes:
        passed = []
        for event in _events(data):
            if b'"usage"' in event or b'"timings"' in event:
                self._usage = read_usage(event_data(event)) or self._usage
                if self._strips_usage and _is_usage_event(event):
                    continue
            passed.append(event)
        return b"".join(passed)


class _Details(msgspec.Struct):
    cached_tokens: Any = None


class _UsageBody(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None  # /v1/responses and /v1/messages say input and output
    output_tokens: Any = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: _UsageBody | None = None


class _Body(msgspec.Struct):
    usage: _UsageBody | None = None
    response: _Response | None = None  # the event response.completed
    timings: Any = None  # llama.cpp's last event, unasked


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")
    type: Any = None


class _Coded(msgspec.Struct):
    code: Any = None


class _CodedResponse(msgspec.Struct):
    error: _Coded | None = None


class _CodedError(msgspec.Struct):
    error: _Coded | None = None
    response: _CodedResponse | None = None  # the event response.failed
    code: Any = None  # the event error


#: What decoding raises for bytes that are no JSON, no UTF-8 or nested without end.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decode_body = msgspec.json.Decoder(_Body).decode
_decode_coded = msgspec.json.Decoder(_CodedError).decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def asking_for_usage(body: bytes) -> bytes:
    """A JSON request with the usage of its stream asked for; anything else as it is.

    >>> asking_for_usage(b'{"model":"m"}')
    b'{"stream_options":{"include_usage":true},"model":"m"}'
    """
    return b'{"stream_options":{"include_usage":true},' + body[1:] if body[:1] == b"{" else body


def read_usage(body: bytes) -> Usage | None:
    """Usage of a JSON answer or event; None if there is none, or the answer is no JSON.

    >>> read_usage(b'{"usage":{"prompt_tokens":14,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}')
    Usage(prompt_tokens=14, completion_tokens=8, cached_tokens=0, is_of_completion=True)
    """
    try:
        decoded = _decode_body(body)
    except _UNREADABLE:
        return None
    usage = decoded.usage or (decoded.response.usage if decoded.response else None)
    if usage is None:
        return _usage_of_timings(decoded.timings)
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    return Usage(
        prompt_tokens=_count(usage.prompt_tokens, usage.input_tokens),
        completion_tokens=_count(usage.completion_tokens, usage.output_tokens),
        cached_tokens=_count(details.cached_tokens),
        is_of_completion=usage.input_tokens is None,
    )


def _usage_of_timings(timings: object) -> Usage | None:
    """Usage in what llama.cpp says of its work: prompt tokens from its cache and computed, and tokens of the answer."""
    if not isinstance(timings, dict):
        return None
    cached, computed = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
    return Usage(
        prompt_tokens=None if cached is None or computed is None else cached + computed,
        completion_tokens=_count(timings.get("predicted_n")),
        cached_tokens=cached,
    )


def event_data(event: bytes) -> bytes:
    """Content of an event's data lines.

    >>> event_data(b"event: x\\ndata: {}\\n\\n")
    b'{}'
    """
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def is_error_event(event: bytes) -> bool:
    """Whether an event says that the request failed: JSON with an `error` that is not null, or of such a type."""
    try:
        chunk = _decode_chunk(event_data(event))
    except _UNREADABLE:
        return False
    return bytes(chunk.error) != b"null" or chunk.type in _FAILURES


def ends_with_error(data: bytes) -> bool:
    """Whether a stream's last event, [DONE] aside, says that the engine failed; `data` is the end of the stream.

    >>> ends_with_error(b'data: {"choices":[]}\\n\\ndata: {"error":{"code":500}}\\n\\ndata: [DONE]\\n\\n')
    True
    >>> ends_with_error(b'data: {"choices":[]}\\n\\ndata: [DONE]\\n\\n')
    False
    """
    code = _last_error(data)
    return code is not None and not 400 <= code < 500


def ends_well(data: bytes) -> bool:
    """Whether the end of a completion's stream says that it is one: a finish, usage, [DONE], or the client's own fault.

    >>> ends_well(b'data: {"choices":[{"finish_reason":"stop"}]}\\n\\n')
    True
    >>> ends_well(b'data: {"choices":[{"finish_reason":null}]}\\n\\n')
    False
    """
    if any(mark in data for mark in _GOOD_ENDS):
        return True
    code = _last_error(data)
    return code is not None and 400 <= code < 500


def _last_error(data: bytes) -> int | None:
    """Status that the last event names, [DONE] left out, if it is an error."""
    if b'"error"' not in data:
        return None
    events = [event for event in _events(data) if event_data(event) not in (b"", b"[DONE]")]
    return error_code(events[-1]) if events else None


def error_code(event: bytes) -> int | None:
    """Status that an error event names, 500 where it names none; None for an event that is no error.

    >>> error_code(b'data: {"error":{"code":503}}'), error_code(b'data: {"error":"no"}'), error_code(b"data: {}")
    (503, 500, None)
    >>> error_code(b'data: {"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}')
    429
    """
    if not is_error_event(event):
        return None
    try:
        coded = _decode_coded(event_data(event))
    except _UNREADABLE:
        return 500
    told = coded.error or (coded.response and coded.response.error) or coded
    return told.code if type(told.code) is int else 500 if coded.error else _status_of(told.code)


def _status_of(word: object) -> int:
    """Status of what /v1/responses names as the code of an error."""
    if word == "rate_limit_exceeded":
        return 429
    return 400 if isinstance(word, str) and word.startswith("invalid_") else 500


def is_json(body: bytes) -> bool:
    """Whether a body is one whole JSON document.

    >>> is_json(b'{"id": [1, 2]}'), is_json(b'{"id": [1,')
    (True, False)
    """
    try:
        _decode_raw(body)
    except _UNREADABLE:
        return False
    return True


def first_event(data: bytes) -> bytes | None:
    """First event with data that says something of the work; comments, as keep-alives are, do not count.

    Nor does that a response was created, or is "in progress".

    >>> first_event(b': wait\\n\\ndata: {"type":"response.created"}\\n\\ndata: {"choices":[]}\\n\\n')
    b'data: {"choices":[]}\\n\\n'
    """
    return next((event for event in _events(data) if b"data:" in event and not _is_prologue(event)), None)


def _is_prologue(event: bytes) -> bool:
    if b'"response.' not in event:
        return False
    try:
        return _decode_chunk(event_data(event)).type in _PROLOGUE
    except _UNREADABLE:
        return False


def _is_usage_event(event: bytes) -> bool:
    try:
        chunk = _decode_chunk(event_data(event))
    except _UNREADABLE:
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"


def _events(data: bytes) -> list[bytes]:
    """Whole events, each with its own end."""
    end = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
    parts = data.split(end)
    return [part + end for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _count(*values: object) -> int | None:
    """First of `values` that is a number of tokens one can believe."""
    return next((value for value in values if type(value) is int and 0 <= value <= MOST_TOKENS), None)
