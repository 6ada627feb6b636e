"""What an answer amounts to, from its bytes: whole, an error, broken, or what only looks like an answer. Pure.

Stricter than a client would be: an answer is whole only if it has a finish and exactly the tokens that were asked for.
"""

from enum import Enum

import msgspec


class Ending(Enum):
    """How a request ended, as its client saw it."""

    WHOLE = "answered whole"
    REFUSED = "an error answer in OpenAI's shape"
    MALFORMED = "an error answer in no shape"
    ERROR_EVENT = "broken off with an error event, and nothing after it"
    CUT = "broken off without a word"
    FORGED = "a finish, or [DONE], that is not true"
    NOTHING = "no answer began"
    EMPTY = "an answer that holds none"


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, object] | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Body).decode

#: Codes of error events that Forebay writes itself: nothing may follow them.
OURS = ("engine_broke_off", "engine_silent", "worker_broke_off", "worker_silent", "deadline_exceeded")


class Stream:
    """The events of one streamed answer.

    >>> stream = Stream()
    >>> stream.feed(b'data: {"choices":[{"delta":{"content":" air"}}]}\\n\\ndata: {"choi')
    True
    >>> stream.ending(asked_tokens=1, is_complete=False)
    <Ending.CUT: 'broken off without a word'>
    >>> stream.feed(b'ces":[{"finish_reason":"length"}],"usage":{"completion_tokens":1}}\\n\\ndata: [DONE]\\n\\n')
    False
    >>> stream.ending(asked_tokens=1, is_complete=True)
    <Ending.WHOLE: 'answered whole'>
    """

    def __init__(self) -> None:
        self.has_content = False
        self.error: dict[str, object] | None = None
        self.is_garbled = False
        self._rest = b""
        self._finish: str | None = None
        self._tokens: int | None = None
        self._is_done = False
        self._followed_error = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; True once, when they bring the first content."""
        had = self.has_content
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._take(event.removeprefix(b"data:").strip())
        return self.has_content and not had

    def ending(self, *, asked_tokens: int, is_complete: bool) -> Ending:
        """The judgement; `is_complete` says whether the body ended as HTTP wants it."""
        if self.error is not None:
            is_ours = self.error.get("code") in OURS
            if self._finish or (is_ours and (self._is_done or self._followed_error)):
                return Ending.FORGED
            return Ending.ERROR_EVENT
        if not is_complete:
            return Ending.CUT
        if self._finish:
            is_true = self._tokens == asked_tokens and not self.is_garbled
            return Ending.WHOLE if is_true else Ending.FORGED
        if self._is_done:
            return Ending.FORGED
        return Ending.CUT if self.has_content else Ending.EMPTY

    def _take(self, data: bytes) -> None:
        if self.error is not None:
            self._followed_error = True
        if data == b"[DONE]":
            self._is_done = True
            return
        if not data or data.startswith(b":"):
            return  # a comment keeps the connection awake, and says nothing
        try:
            event = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.is_garbled = True
            return
        self.error = self.error or event.error
        if event.usage is not None:
            self._tokens = event.usage.completion_tokens
        for choice in event.choices:
            self._finish = self._finish or choice.finish_reason
            self.has_content = self.has_content or bool((choice.delta or {}).get("content"))


def plain_ending(body: bytes, *, asked_tokens: int) -> Ending:
    """The judgement of a plain answer with status 200.

    >>> plain_ending(b'{"choices":[{"finish_reason":"length"}],"usage":{"completion_tokens":3}}', asked_tokens=3)
    <Ending.WHOLE: 'answered whole'>
    >>> plain_ending(b'{"choi', asked_tokens=3)
    <Ending.EMPTY: 'an answer that holds none'>
    """
    try:
        answer = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Ending.EMPTY
    finished = [choice for choice in answer.choices if choice.finish_reason]
    if not finished or answer.usage is None:
        return Ending.EMPTY
    return Ending.WHOLE if answer.usage.completion_tokens == asked_tokens else Ending.FORGED


def error_ending(body: bytes) -> Ending:
    """The judgement of an answer with a status from 400 on: an engine's own words come in the engine's own shape.

    >>> error_ending(b'{"error":{"message":"busy","code":503}}'), error_ending(b"oops")
    (<Ending.REFUSED: "an error answer in OpenAI's shape">, <Ending.MALFORMED: 'an error answer in no shape'>)
    """
    try:
        page = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Ending.MALFORMED
    is_said = isinstance(page, dict) and any(page.get(key) for key in ("error", "detail", "message"))
    return Ending.REFUSED if is_said else Ending.MALFORMED
