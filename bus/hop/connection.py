"""One HTTP/1.1 connection to a worker or an engine: parses the frame, hands the bytes on.

The parser is llhttp (through httptools): chunk framing, lengths and malformed answers are its business.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import httptools

from bus.hop.answer import Answer
from bus.hop.errors import AnswerBroke
from bus.hop.headers import RawHeaders

#: Headers of one answer; more is not an answer of an inference server.
MAX_HEADER_BYTES: Final = 64 * 1024

_BODYLESS: Final = frozenset({204, 304})


class Connection(asyncio.Protocol):
    """Carries one request at a time; `on_free(connection)` is called when it can carry the next."""

    def __init__(self, on_free: Callable[["Connection"], None]) -> None:
        self.idle_since_s = 0.0
        self.requests = 0
        """Requests carried so far: above 1 the connection was reused."""
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._headers: RawHeaders = []
        self._header_bytes = 0
        self._frame_bytes = 0
        """Bytes in a row that were neither a whole head nor of a body."""
        self._fresh: list[bytes] = []
        self._is_head_request = False
        self._ends_with_connection = False
        self._is_message_complete = False
        self._keeps_alive = False

    @property
    def is_open(self) -> bool:
        """Whether a request can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, *, is_head_request: bool = False) -> Answer:
        """Write one request and return its answer, which has yet to arrive."""
        if self._transport is None or self._answer is not None:
            raise AnswerBroke("connection is not free")
        self._answer = answer = Answer(self, self._loop)
        self.requests += 1
        self._is_head_request = is_head_request
        self._is_message_complete = False
        self._keeps_alive = False
        self._frame_bytes = 0
        if len(body) > 65536:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        return answer

    def pause_reading(self) -> None:
        """Let the other side wait."""
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, dropping what is not yet written."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after what is already written."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """Parse, then hand on all body bytes of this read in one piece, then end the answer if it is complete."""
        answer = self._answer
        if answer is None:  # nobody asked: whatever this is, the connection is of no use
            self.abort()
            return
        answer.has_bytes = True
        fault = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            fault = AnswerBroke(f"not an HTTP answer: {error}")
        if self._fresh:
            fresh = self._fresh
            self._fresh = []
            self._frame_bytes = 0
            answer.take_bytes(fresh[0] if len(fresh) == 1 else b"".join(fresh))
        else:
            self._frame_bytes += len(data)
            if self._frame_bytes > MAX_HEADER_BYTES:  # one line without end reaches no callback of the parser
                fault = AnswerBroke("not an HTTP answer: headers too large")
        if self._is_message_complete:
            self._keeps_alive = self._keeps_alive and fault is None
            self._end_message(answer)
        elif fault is not None:
            self._answer = None
            answer.break_off(fault)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer under way: complete if its end was the connection's end, else broken."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if exc is None and answer.status and self._ends_with_connection:
            answer.complete()
        else:
            answer.break_off(AnswerBroke(f"connection ended: {exc or 'closed by the other side'}"))

    # -- httptools

    def on_message_begin(self) -> None:
        """Forget the headers of the answer before; a second answer to one request is none."""
        if self._is_message_complete:
            raise ValueError("more than one answer to a request")
        self._headers = []
        self._header_bytes = 0
        self._ends_with_connection = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header, raw."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("headers too large")
        lower = name.lower()
        if lower == b"content-length" or (lower == b"transfer-encoding" and b"chunked" in value.lower()):
            self._ends_with_connection = False
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Hand the head on, unless it is an interim one (1xx)."""
        status = self._parser.get_status_code()
        if status >= 200 and self._answer is not None:
            self._answer.take_head(status, self._headers)
            if self._is_head_request or status in _BODYLESS:
                self._is_message_complete = True

    def on_body(self, body: bytes) -> None:
        """Collect body bytes until the read they came with is parsed."""
        if not self._is_head_request:
            self._fresh.append(body)

    def on_message_complete(self) -> None:
        """Note the end; it is acted on once the read is parsed."""
        if self._parser.get_status_code() >= 200:
            self._is_message_complete = True
            self._keeps_alive = self._parser.should_keep_alive()  # the parser knows it only now

    def _end_message(self, answer: Answer) -> None:
        self._answer = None
        is_reusable = self._keeps_alive and not self._is_head_request and self.is_open
        answer.complete()
        if is_reusable:
            self.idle_since_s = self._loop.time()
            self._on_free(self)
        else:
            self.close()
