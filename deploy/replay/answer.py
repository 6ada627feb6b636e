"""What an answer says: first content event, finish, usage, error. Pure; fed with bytes, told no time.

An event costs next to nothing once content has begun: bytes are counted and kept, the last ones are decoded at the
end. `[DONE]` proves nothing (vLLM sends it after its own errors) and may be absent; a `finish_reason` proves a finish.
"""

from typing import Any, Final

import msgspec

from deploy.replay.outcome import Failure

_KEPT_BYTES: Final = 16 * 1024  # the finish, usage and [DONE] events of an answer are far shorter together
_CUT_BYTES: Final = 4 * _KEPT_BYTES  # cut seldom: once in some 200 events
_DETAIL_CHARS: Final = 160


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode


class Verdict(msgspec.Struct, frozen=True):
    """What a complete answer amounted to."""

    failure: Failure | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class StreamScan:
    """Reads one server-sent-event stream."""

    __slots__ = ("_kept", "_kept_bytes", "bytes_received", "has_content")

    def __init__(self) -> None:
        self.bytes_received = 0
        self.has_content = False
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def add(self, data: bytes) -> bool:
        """Take the next bytes; True exactly once, when they complete the first event that carries an answer."""
        size = len(data)
        self.bytes_received += size
        self._kept.append(data)
        self._kept_bytes += size
        if not self.has_content:
            return self._look_for_content()
        if self._kept_bytes > _CUT_BYTES:
            self._cut()
        return False

    def verdict(self) -> Verdict:
        """The judgement of the whole stream, from its last events."""
        finish = usage = None
        for data in reversed(_events(b"".join(self._kept))):
            event = _decoded(data)
            if event is None:
                continue
            failure = _error_of(event)
            if failure is not None:
                return Verdict(failure)
            usage = usage or event.usage
            finish = finish or _finish_of(event)
            if finish and usage:
                break
        if finish is None:
            return Verdict(Failure("no finish_reason", "the stream ended without one"))
        if usage is None:
            return Verdict()
        return Verdict(None, usage.prompt_tokens, usage.completion_tokens)

    def _look_for_content(self) -> bool:
        joined = b"".join(self._kept)[-_CUT_BYTES:]
        self._kept = [joined]
        for data in _events(joined[: joined.rfind(b"\n") + 1]):
            event = _decoded(data)
            if event is not None and _has_content(event):
                self.has_content = True
                return True
        return False

    def _cut(self) -> None:
        self._kept = [b"".join(self._kept)[-_KEPT_BYTES:]]
        self._kept_bytes = len(self._kept[0])


class PlainScan:
    """Reads one answer that is a single JSON document, or an error's body."""

    __slots__ = ("_kept", "bytes_received", "has_content")

    def __init__(self) -> None:
        self.bytes_received = 0
        self.has_content = False
        self._kept: list[bytes] = []

    def add(self, data: bytes) -> bool:
        """Take the next bytes; always False, since a plain answer has no first token."""
        self.bytes_received += len(data)
        self._kept.append(data)
        return False

    def verdict(self) -> Verdict:
        """The judgement of a whole 200 answer."""
        event = _decoded(b"".join(self._kept))
        if event is None:
            return Verdict(Failure("bad answer", "it is not the JSON of a completion"))
        failure = _error_of(event)
        if failure is not None:
            return Verdict(failure)
        if _finish_of(event) is None:
            return Verdict(Failure("no finish_reason", "the answer has none"))
        usage = event.usage or _Usage()
        return Verdict(None, usage.prompt_tokens, usage.completion_tokens)

    def detail(self) -> str:
        """The body as one short line."""
        return one_line(b"".join(self._kept).decode("utf-8", "replace"))


def one_line(text: str) -> str:
    r"""Text for a report: one line, at most 160 characters.

    >>> one_line("engine\n is  busy")
    'engine is busy'
    """
    joined = " ".join(text[: 4 * _DETAIL_CHARS].split())
    return joined if len(joined) <= _DETAIL_CHARS else joined[: _DETAIL_CHARS - 1] + "…"


def _events(data: bytes) -> list[bytes]:
    """Payloads of the `data:` lines; a first line that was cut in half is none."""
    return [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]


def _decoded(data: bytes) -> _Event | None:
    try:
        return _decode_event(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _has_content(event: _Event) -> bool:
    """Whether the event carries an answer: anything but the opening role with nothing said.

    vLLM sends tokens that are no whole character as empty content; only the role event comes before prefill ends.
    """
    for choice in event.choices:
        delta = choice.delta or {}
        if choice.text is not None or choice.finish_reason or "role" not in delta:
            return True
        if any(value for key, value in delta.items() if key != "role"):
            return True
    return False


def _finish_of(event: _Event) -> str | None:
    return next((choice.finish_reason for choice in event.choices if choice.finish_reason), None)


def _error_of(event: _Event) -> Failure | None:
    error = event.error
    if error is None and event.object == "error":
        error = event.message or "error"
    if not error:
        return None
    if isinstance(error, dict):
        error = error.get("message") or error
    return Failure("error event", one_line(str(error)))
