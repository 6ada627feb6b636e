"""One answer on its way: its head, and its body as bytes that go straight to a sink.

A sink is a plain function. Bytes reach it in the same turn of the loop in which they arrived: no queue, no task switch.
Until a sink is attached the bytes are held, and reading pauses when too many are.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bus.hop.errors import AnswerBroke, AnswerTooLarge, AnswerTooSlow, HopFailed
from bus.hop.headers import RawHeaders, header

if TYPE_CHECKING:
    from bus.hop.connection import Connection

Sink = Callable[[bytes], None]

#: Bytes that may wait for a sink before the other side is made to wait.
HELD_BYTES: Final = 256 * 1024

#: Longest silence while a small page is collected, s; whoever relays says how long he waits.
PAGE_SILENCE_S: Final = 60.0


class Answer:
    """The answer to one request; ends exactly once: complete, broken or aborted."""

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self.is_complete = False
        self.has_bytes = False
        """Something of the answer has arrived."""
        self.fault: HopFailed | None = None
        self._connection = connection
        self._loop = loop
        self._sink: Sink | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_paused = False
        self._last_byte_s = loop.time()
        self._silence_s = 0.0
        self._silence_timer: asyncio.TimerHandle | None = None
        self._head: asyncio.Future[None] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()
        """Done at the end, good or bad; it never carries an exception: `fault` does."""

    # -- the reading side

    @property
    def content_type(self) -> bytes:
        """Media type without parameters, in lower case."""
        return (header(self.headers, b"content-type") or b"").split(b";", 1)[0].strip().lower()

    async def head(self, timeout_s: float) -> None:
        """Wait until status and headers are there. Raises HopFailed."""
        if not self._head.done():
            timer = self._loop.call_later(timeout_s, self._wake)
            try:
                await self._head
            finally:
                timer.cancel()
        if not self.status and self.fault is None:
            raise AnswerTooSlow(f"no answer within {timeout_s:g} s")
        if self.fault is not None and not self.status:
            raise self.fault

    def forward(self, sink: Sink, *, silence_s: float) -> None:
        """Give everything held, and from now on every byte that arrives, to `sink`.

        The answer breaks with AnswerTooSlow when no byte comes for `silence_s` seconds.
        """
        self._silence_s = silence_s
        self._last_byte_s = self._loop.time()
        held, self._held, self._held_bytes = self._held, [], 0
        self._sink = sink
        if held:
            sink(b"".join(held))
        self.resume()
        if self._silence_timer is not None:
            self._silence_timer.cancel()  # it may be set for much later
        if not self.end.done():
            self._silence_timer = self._loop.call_later(silence_s, self._check_silence)

    async def body(self, limit: int, *, silence_s: float = PAGE_SILENCE_S) -> bytes:
        """Wait for the whole body, of at most `limit` bytes; the answer is aborted on any way out before its end.

        Raises HopFailed if it broke, AnswerTooLarge above the limit.
        """
        parts: list[bytes] = []
        size = 0

        def collect(data: bytes) -> None:
            nonlocal size
            size += len(data)
            parts.append(data)
            if size > limit:
                self.break_off(AnswerTooLarge(f"answer larger than {limit} bytes"))
                self._connection.abort()

        try:
            self.forward(collect, silence_s=silence_s)
            await self.ended()
        finally:
            self.abort()
        return b"".join(parts)

    async def whole(self, limit: int, *, silence_s: float) -> bytes | None:
        """Wait for the whole body; None once it is longer than `limit`: it is still all there, to be forwarded.

        Raises HopFailed if it broke; the answer is aborted if this is cancelled.
        """
        parts: list[bytes] = []
        size = 0
        is_longer: asyncio.Future[None] = self._loop.create_future()

        def collect(data: bytes) -> None:
            nonlocal size
            size += len(data)
            parts.append(data)
            if size > limit:
                self._sink, self._held, self._held_bytes = None, parts, size
                self.pause()
                is_longer.set_result(None)

        self.forward(collect, silence_s=silence_s)
        try:
            await asyncio.wait((self.end, is_longer), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.abort()
            raise
        if is_longer.done():
            return None
        if self.fault is not None:
            raise self.fault
        return b"".join(parts)

    async def ended(self) -> None:
        """Wait until the body is complete. Raises HopFailed if it broke."""
        if not self.end.done():
            await asyncio.wait((self.end,))  # not the future itself: a waiter that is cancelled does not end the answer
        if self.fault is not None:
            raise self.fault

    def pause(self) -> None:
        """Stop reading: whoever takes the bytes is slower than whoever sends them."""
        if not self._is_paused and not self.end.done():
            self._is_paused = True
            self._connection.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            self._last_byte_s = self._loop.time()
            self._connection.resume_reading()

    def abort(self, fault: HopFailed | None = None) -> None:
        """End the request now: the connection is closed, which the other side sees. Does nothing after the end.

        Whoever waits for the answer is told `fault`.
        """
        if not self.end.done():
            self.break_off(fault or AnswerBroke("aborted by this side"))
            self._connection.abort()

    # -- called by the connection

    def take_head(self, status: int, headers: RawHeaders) -> None:
        """Status and headers have arrived."""
        self.status, self.headers = status, headers
        if not self._head.done():
            self._head.set_result(None)

    def take_bytes(self, data: bytes) -> None:
        """Body bytes have arrived."""
        self._last_byte_s = self._loop.time()
        if self._sink is not None:
            self._sink(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES:
            self.pause()

    def complete(self) -> None:
        """The whole body has arrived."""
        if not self.end.done():
            self.resume()  # the connection goes to the next request, which must not find it paused
            self.is_complete = True
            self._finish()

    def break_off(self, fault: HopFailed) -> None:
        """The answer will never be complete."""
        if not self.end.done():
            self.fault = fault
            self._finish()

    def _wake(self) -> None:
        """Let whoever waits for the head look: it has not come in time."""
        if not self._head.done():
            self._head.set_result(None)

    def _finish(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        for future in (self._head, self.end):
            if not future.done():
                future.set_result(None)

    def _check_silence(self) -> None:
        """Break an answer that has been silent too long; one timer an answer, not one a byte."""
        remaining_s = self._last_byte_s + self._silence_s - self._loop.time()
        if self._is_paused:
            remaining_s = self._silence_s
        if remaining_s > 0:
            self._silence_timer = self._loop.call_later(remaining_s, self._check_silence)
        else:
            self.break_off(AnswerTooSlow(f"no byte for {self._silence_s:g} s"))
            self._connection.abort()
