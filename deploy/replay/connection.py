"""One HTTP/1.1 connection of the replay client, lean enough for thousands of chunks a second beside everything else.

Requests go out as ready-made bytes; httptools parses what comes back; bodies go to a scan. That costs 0.6 µs a chunk
beside some 9 µs for which the kernel and uvloop wake the process. No retries, no pool.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from deploy.replay.answer import PlainScan, StreamScan, one_line
from deploy.replay.outcome import Failure


class Exchange:
    """One request and its answer on a connection: what came, and when, in seconds of `perf_counter`."""

    __slots__ = (
        "ended_s",
        "failure",
        "first_s",
        "instance",
        "is_over",
        "on_over",
        "request",
        "scan",
        "sent_s",
        "status",
    )

    def __init__(self, request: tuple[bytes, bytes], scan: StreamScan | PlainScan, on_over: Callable[[], None]) -> None:
        self.request = request
        self.scan: StreamScan | PlainScan = scan
        self.on_over = on_over
        self.sent_s = 0.0
        self.first_s: float | None = None
        self.ended_s = 0.0
        self.status: int | None = None
        self.instance: str | None = None
        self.failure: Failure | None = None
        self.is_over = False

    def end(self, failure: Failure | None = None) -> None:
        """The answer is complete, or has failed. A second end changes nothing."""
        if self.is_over:
            return
        self.is_over = True
        self.ended_s = perf_counter()
        self.failure = failure or _status_failure(self)
        self.on_over()


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. `release` is told when it is free again, `lost` when it is gone."""

    __slots__ = (
        "_exchange",
        "_has_length",
        "_lost",
        "_parser",
        "_release",
        "_transport",
        "is_open",
        "was_used",
    )

    def __init__(
        self,
        release: Callable[["Connection"], None],
        lost: Callable[["Connection", Exchange | None], None],
    ) -> None:
        self._release = release
        self._lost = lost
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._has_length = False
        self.is_open = False
        self.was_used = False
        """Whether an answer has begun to arrive on it: only then may a silent close be mere keep-alive expiry."""

    def send(self, exchange: Exchange) -> None:
        """Write the request of an exchange; the connection must be open and free."""
        if self._transport is None or self._exchange is not None:
            raise RuntimeError("the connection is not open and free")
        self._exchange = exchange
        self._transport.writelines(exchange.request)

    def close(self) -> None:
        """Drop the connection at once, whatever runs on it."""
        self._exchange = None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse what came; anything that is not HTTP/1.1 ends the exchange and the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # ours, not the server's
        except httptools.HttpParserError as error:
            exchange = self._exchange
            self.close()
            if exchange is not None:
                exchange.end(Failure("broken stream", one_line(f"not HTTP/1.1: {error}")))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange that ran: by its end if the close is one, else as a broken stream."""
        self.is_open = False
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exc is None and exchange.status is not None and not self._has_length:
            # No length was announced: the close is the regular end of this body.
            exchange.end()
            exchange = None
        self._lost(self, exchange)

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the two headers that matter."""
        name = name.lower()
        if name == b"x-forebay-instance" and self._exchange is not None:
            self._exchange.instance = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Note the status; an error's body is read for its message."""
        self.was_used = True
        exchange = self._exchange
        status = self._parser.get_status_code()
        if exchange is None or status < 200:
            return
        exchange.status = status
        if status != 200:
            exchange.scan = PlainScan()

    def on_body(self, body: bytes) -> None:
        """Hand the bytes to the scan; note the moment of the first content."""
        exchange = self._exchange
        if exchange is not None and exchange.scan.add(body):
            exchange.first_s = perf_counter()

    def on_message_complete(self) -> None:
        """End the exchange and make the connection free, or close it if the server wants that."""
        if self._parser.get_status_code() < 200:
            return
        exchange, self._exchange = self._exchange, None
        self._has_length = False
        if exchange is None:
            return
        if self.is_open and self._parser.should_keep_alive():
            self._release(self)
        else:
            self.close()
        exchange.end()


def _status_failure(exchange: Exchange) -> Failure | None:
    if exchange.status == 200:
        return None
    scan = exchange.scan
    return Failure(f"status {exchange.status}", scan.detail() if isinstance(scan, PlainScan) else "")
