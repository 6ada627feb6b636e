"""The other half of the hop: a streamed reply to whoever asked, written without a task switch a chunk.

aiohttp parses the request and writes the head; the body goes to the transport from here, framed as HTTP chunks, in the
very call in which it arrived. aiohttp writes the end of the body, so it keeps its view of the connection.
"""

import asyncio
import math
from typing import Final

from aiohttp import HttpVersion11, web

from bus.hop.answer import Answer, Sink
from bus.hop.errors import ClientLeft
from bus.hop.sse import ends_well, ends_with_error

#: Bytes that may wait for a slow reader before the sender is paused; aiohttp's own high-water mark is the same.
HIGH_WATER_BYTES: Final = 64 * 1024

#: What is written between two looks at how much waits: a look costs as much as a small write.
UNCHECKED_BYTES: Final = 16 * 1024

#: A reader that takes nothing from one look to the next, s, has left: what it holds of an engine is for others.
STALLED_S: Final = 300.0

#: Paths whose streams say how they end.
_COMPLETIONS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})

#: Of a read as short as this the one before it is kept too, up to so many bytes.
SHORT_BYTES: Final = 32
KEPT_BYTES: Final = 4096


async def finish(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Write what is left of an answer, all of a plain one and the end of a stream, at its reader's pace.

    A reader that takes nothing has left after twice STALLED_S at most. That it has, aiohttp finds by itself.
    """
    if request.transport is None:
        return
    stall = _Stall(request.transport)
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        return
    finally:
        stall.end()


class _Stall:
    """Ends a connection whose reader takes nothing between two looks."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting_bytes = math.inf
        self._timer = asyncio.get_running_loop().call_later(STALLED_S, self._look)

    def end(self) -> None:
        """All has been taken, or nobody is there."""
        self._timer.cancel()

    def _look(self) -> None:
        before, self._waiting_bytes = self._waiting_bytes, self._transport.get_write_buffer_size()
        if self._waiting_bytes >= before:
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(STALLED_S, self._look)


class StreamReply:
    """A reply under way. `write` is a sink for an Answer; `relay` ties the two together with backpressure."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self.response = response
        self._request = request
        self._is_chunked = request.version >= HttpVersion11
        self._transport = request.transport
        self._answer: Answer | None = None
        self._draining: asyncio.Task[None] | None = None
        self._last = b""
        self._unchecked_bytes = 0

    @property
    def ends_at_event(self) -> bool:
        """Whether what was written ends with a whole event: only then may another event follow."""
        return not self._last or self._last.endswith((b"\n\n", b"\r\n\r\n"))

    def is_broken(self, path: str) -> bool:
        """Whether a stream that ended as HTTP wants it is not whole: it says so, or a completion just stopped."""
        return self.ends_with_error or (path in _COMPLETIONS and not self.ends_well)

    @property
    def ends_with_error(self) -> bool:
        """Whether the last event that was written says that the engine failed."""
        return ends_with_error(self._last)

    @property
    def ends_well(self) -> bool:
        """Whether what was written last ends a completion."""
        return ends_well(self._last)

    @classmethod
    async def start(cls, request: web.BaseRequest, status: int, headers: list[tuple[str, str]]) -> "StreamReply":
        """Write status and headers. Raises ClientLeft."""
        response = web.StreamResponse(status=status)
        for name, value in headers:
            response.headers.add(name, value)
        try:
            await response.prepare(request)
        except ConnectionError as fault:  # in the turn before the handler is cancelled
            raise ClientLeft("before its answer began") from fault
        return cls(request, response)

    def write(self, data: bytes) -> None:
        """Write body bytes; where the reader is slow, pause the answer they come from."""
        # an event's end may come in two reads, and a [DONE] after what it does not undo
        self._last = data if len(data) > SHORT_BYTES else self._last[-KEPT_BYTES:] + data
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the client leaves and the handler is being cancelled; how the answer ends is known all the same
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes > UNCHECKED_BYTES:
            self._unchecked_bytes = 0
            self._hold_back(transport)

    async def relay(self, answer: Answer, *, silence_s: float, through: Sink | None = None) -> None:
        """Write the body of `answer` to its end; HopFailed if it breaks.

        `through` stands between the two: it is given the bytes and calls `write` with what shall be written.
        """
        self._answer = answer
        try:
            answer.forward(through or self.write, silence_s=silence_s)
            await answer.ended()
        finally:
            if self._draining is not None:
                self._draining.cancel()

    def _hold_back(self, transport: asyncio.Transport) -> None:
        """Pause the answer if the reader is too far behind."""
        if self._answer is not None and self._draining is None and transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._answer.pause()
            self._draining = asyncio.create_task(self._drain(self._answer), name="drain a slow reader")

    async def _drain(self, answer: Answer) -> None:
        """Let the answer flow again once the reader has caught up; one that takes nothing at all has left."""
        if self._transport is None:
            return
        stall = _Stall(self._transport)
        try:
            await self._request.writer.drain()
        except ConnectionError:
            return  # the reader has left: the handler is being cancelled
        finally:
            stall.end()
        self._draining = None
        answer.resume()
