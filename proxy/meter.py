"""Counts the tokens of one answer as its engine counts them, for a key that is limited in them."""

import re
from typing import Final

import msgspec

from bus.hop.answer import Sink
from bus.hop.sse import EventTap, Usage, read_usage
from proxy.facts import BadRequest, Facts
from proxy.keys import LARGEST_LIMIT

#: Bytes at the end of a large answer in which its usage is looked for.
END_BYTES: Final = 4096

#: Bytes of a large answer that are taken for a token, where it does not say how many it has.
TOKEN_BYTES: Final = 4

#: A usage as it stands in an answer; what a model writes cannot look like it, its quotes are escaped.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{(?:[^{}]|\{[^{}]*\})*\}')

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Meter:
    """Looks for the usage in an answer; `strips_usage` keeps an event out that the client has not asked for."""

    def __init__(self, *, strips_usage: bool) -> None:
        self._events = 0
        self._json_bytes = 0
        self._end = b""
        self._tap = EventTap(strips_usage=strips_usage)
        self._usage: Usage | None = None

    @property
    def tokens(self) -> int | None:
        """Prompt and answer together; None: the engine did not say."""
        usage = self._usage or self._tap.usage()
        if usage is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
            return None
        return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)

    @property
    def seen_tokens(self) -> int:
        """About the tokens of what has passed, where its engine does not say how many they were."""
        return self._events + self._json_bytes // TOKEN_BYTES

    def through(self, write: Sink, kind: bytes) -> Sink:
        """Sink that stands before `write`, for an answer of this media type that is passed on as it comes."""

        def take_events(data: bytes) -> None:
            self._events += data.count(b"data:")
            passed = self._tap.feed(data)
            if passed:
                write(passed)

        def take_piece(data: bytes) -> None:
            if kind == b"application/json":  # bytes of sound or pictures say nothing
                self._json_bytes += len(data)
            self._end = (self._end + data[-END_BYTES:])[-END_BYTES:]
            write(data)

        return take_events if kind == b"text/event-stream" else take_piece

    def rest(self) -> bytes:
        """What was held back of an unfinished last event; the answer has ended."""
        if found := _USAGE.findall(self._end):
            self._usage = read_usage(b"{%b}" % found[-1])
        return self._tap.end()

    def saw_whole(self, body: bytes) -> None:
        """An answer has come in one piece."""
        self._usage = read_usage(body)


def asks_for_usage(facts: Facts, body: bytes) -> bytes | None:
    """The body with the usage of its stream asked for, whatever it says of that; None where it needs no asking.

    The object is written anew, its values as they came, and `stream_options` stands in it once: of a name that stands
    there twice an engine may take the first or the last, or refuse both. Raises BadRequest.
    """
    if facts.tells_usage:
        return None
    try:
        fields = _decode_fields(body)
        options = bytes(fields.get("stream_options", b""))
        kept = _decode_fields(options) if options[:1] == b"{" else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"the body is not a JSON object: {fault}") from fault
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**kept, "include_usage": True}))
    return msgspec.json.encode(fields)


def expected_tokens(facts: Facts, prompt_tokens: int) -> int:
    """What a request may spend: its prompt, and the most that its answers may have."""
    return min(prompt_tokens + facts.sequences * (facts.output_cap or 0), LARGEST_LIMIT)
