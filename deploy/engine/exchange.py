"""A request on the engine: its sequences, and how their tokens reach the client. No routes, no scheduling.

A `Choice` is one answer of a request and its key in the batcher. It counts its tokens and wakes its exchange only when
something must be sent; an exchange of a stream then writes straight to the connection, without a switch of tasks.
"""

import asyncio
from typing import Protocol

from deploy.engine.intake import Asked
from deploy.engine.text import TokenText
from deploy.engine.wording import Wording

_ANY = 2**62  # more tokens than any answer has


class Exchange(Protocol):
    """What a choice reports to."""

    done: asyncio.Future[bool]

    def emit(self, choice: "Choice") -> None:
        """The choice has reached `choice.next_emit` tokens."""


class Choice:
    """One answer; `tokens` are produced, `sent` of them have been told."""

    __slots__ = ("exchange", "index", "max_tokens", "next_emit", "offset", "sent", "tokens")

    def __init__(self, exchange: Exchange, index: int, offset: int, max_tokens: int, next_emit: int) -> None:
        self.exchange = exchange
        self.index = index
        self.offset = offset
        self.max_tokens = max_tokens
        self.next_emit = next_emit
        self.tokens = 0
        self.sent = 0

    def advance(self) -> None:
        """One token more."""
        self.tokens += 1
        if self.tokens == self.next_emit:
            self.exchange.emit(self)


def _choices(exchange: Exchange, asked: Asked, next_emit: int) -> list[Choice]:
    # Different answers to one prompt begin a prime number of tokens apart.
    return [
        Choice(exchange, prompt * asked.n + copy, offset + 1009 * copy, asked.max_tokens, next_emit)
        for prompt, offset in enumerate(asked.offsets)
        for copy in range(asked.n)
    ]


class PlainExchange:
    """A request that is answered as a whole; `done` is True when every answer is complete, False when it broke."""

    def __init__(self, asked: Asked, *, break_after: int | None) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._breaks_at = break_after or _ANY
        self._left = asked.n * len(asked.prompts)
        self.choices = _choices(self, asked, min(asked.max_tokens, self._breaks_at))

    def emit(self, choice: Choice) -> None:
        """An answer is complete, or the fault's moment has come."""
        self._left -= 1
        if self.done.done():
            return
        if choice.tokens >= self._breaks_at:
            self.done.set_result(False)
        elif not self._left:
            self.done.set_result(True)


class StreamExchange:
    """A request whose tokens are written as they come.

    Data goes to the transport directly: awaiting a response object costs a task switch per event, and thousands of
    events a second share one core with the rest of a benchmark. The transport buffers for a client that reads slowly;
    an answer's length bounds that.
    """

    def __init__(
        self,
        asked: Asked,
        wording: Wording,
        text: TokenText,
        transport: asyncio.WriteTransport,
        *,
        is_chunked: bool,
        tokens_per_chunk: int,
        break_after: int | None,
        has_done: bool = True,
        is_held: bool = False,
    ) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wording = wording
        self._text = text
        self._transport = transport
        self._is_chunked = is_chunked
        self._tokens_per_chunk = tokens_per_chunk
        self._breaks_at = break_after or _ANY
        self._done_mark = wording.done if has_done else b""
        self._is_open = False
        self._held = bytearray() if is_held else None
        self.has_begun = asyncio.Event()
        """There is a token."""
        self._left = asked.n * len(asked.prompts)
        self._max_tokens = asked.max_tokens
        self._output_tokens = self._left * asked.max_tokens
        self.choices = _choices(self, asked, 1)

    def write(self, data: bytes) -> None:
        """Send events, as one chunk of the body."""
        if self._transport.is_closing():
            return  # its handler is about to be cancelled
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
        if self._held is None:
            self._transport.write(framed)
        else:
            self._held += framed

    def release(self) -> None:
        """Send what was held until the headers had left, and hold nothing more."""
        held, self._held = self._held, None
        if held and not self._transport.is_closing():
            self._transport.write(bytes(held))

    def emit(self, choice: Choice) -> None:
        """Tell the tokens that have not been told."""
        if self.done.done():
            return
        tokens, sent = choice.tokens, choice.sent
        choice.sent = tokens
        text = self._text.tokens(choice.offset + sent, tokens - sent)
        opening = b""
        if not self._is_open:
            opening = self._wording.opening()
            self._is_open = True
            self.has_begun.set()
        if tokens == choice.max_tokens:
            self._end(opening + self._wording.last(choice.index, text, tokens))
        else:
            choice.next_emit = min(tokens + self._tokens_per_chunk, choice.max_tokens, self._next_break(tokens))
            self.write(opening + self._wording.delta(choice.index, text, tokens))
        if tokens >= self._breaks_at and not self.done.done():
            self.done.set_result(False)

    def _end(self, data: bytes) -> None:
        self._left -= 1
        if self._left or self._breaks_at <= self._max_tokens:
            self.write(data)
            return
        self.write(data + self._wording.closing(self._output_tokens) + self._done_mark)
        self.done.set_result(True)

    def _next_break(self, tokens: int) -> int:
        return self._breaks_at if self._breaks_at > tokens else _ANY
