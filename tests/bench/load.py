"""Load in a closed loop: each connection sends its next request when the answer to the last is complete.

No task and no future a request: callbacks on raw connections, so that the client takes little of the machine.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from tests.bench.engine import MODEL

#: Prompt of about 120 tokens: enough to be read and decoded, not what is measured.
_PROMPT = "The lake above the turbines is calm and full of water this morning, and so it was the day before. " * 5


def request_bytes(*, is_stream: bool, chunks: int = 16, pace_ms: float = 0.0) -> bytes:
    """One chat completion as it goes over the wire."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": chunks,
        "stream": is_stream,
    }
    if pace_ms:
        body["pace_ms"] = pace_ms
    raw = msgspec.json.encode(body)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\naccept: */*\r\nuser-agent: bench\r\n"
        f"content-type: application/json\r\nauthorization: Bearer none\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


class BadAnswer(Exception):
    """An answer that is not 200, or a connection that ended: a benchmark of errors would measure nothing."""


class Load:
    """Some connections to one target; counts are cumulative, `latencies_s` are those since `forget`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.request = b""
        self.deadline_s = 0.0
        self.left: int | None = None
        """Requests that may still be sent; None: the deadline decides."""
        self.answered = 0
        self.chunks = 0
        self.reads = 0
        """Reads in which those chunks came: as many as chunks if none were merged on the way."""
        self.latencies_s: list[float] = []
        self.running = 0
        self.fault: str | None = None
        self._idle: list[_Client] = []
        self.all_over = asyncio.Event()

    async def connect(self, connections: int) -> None:
        """Open connections up to this number."""
        while len(self._idle) < connections:
            _, client = await asyncio.get_running_loop().create_connection(
                lambda: _Client(self), self._host, self._port
            )
            self._idle.append(client)

    def start(self, concurrency: int, request: bytes, *, spread_s: float = 0.0) -> None:
        """Let `concurrency` connections send `request`, their starts spread over `spread_s` seconds."""
        loop = asyncio.get_running_loop()
        self.request, self.latencies_s = request, []
        self.all_over.clear()
        self.running = concurrency
        for index, client in enumerate(self._idle[:concurrency]):
            loop.call_later(index * spread_s / concurrency, client.send)

    async def over(self, limit_s: float = 120.0) -> None:
        """Wait until every connection is idle. Raises BadAnswer."""
        async with asyncio.timeout(limit_s):
            await self.all_over.wait()
        self.check()

    def check(self) -> None:
        """Raise BadAnswer if there was one."""
        if self.fault is not None:
            raise BadAnswer(self.fault)

    async def run(self, concurrency: int, request: bytes, seconds: float) -> float:
        """Send for `seconds`; returns the seconds it really took."""
        await self.connect(concurrency)
        self.left, started_s = None, perf_counter()
        self.deadline_s = started_s + seconds
        self.start(concurrency, request)
        await self.over(seconds + 60)
        return perf_counter() - started_s

    async def run_each_once(self, concurrency: int, request: bytes) -> float:
        """Send one request on every connection; returns the seconds it took."""
        await self.connect(concurrency)
        self.left, self.deadline_s, started_s = concurrency, float("inf"), perf_counter()
        self.start(concurrency, request)
        await self.over()
        return perf_counter() - started_s

    def close(self) -> None:
        """Close every connection."""
        for client in self._idle:
            client.close()
        self._idle.clear()

    def may_send(self, now_s: float) -> bool:
        """Whether another request may go out; counts it."""
        if self.left is None:
            return now_s < self.deadline_s
        self.left -= 1
        return self.left >= 0

    def stopped(self) -> None:
        """One connection is idle."""
        self.running -= 1
        if self.running <= 0:
            self.all_over.set()

    def failed(self, why: str) -> None:
        """End the run."""
        self.fault = self.fault or why
        self.all_over.set()


class _Client(asyncio.Protocol):
    """One connection of a load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sent_s = 0.0
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        now_s = perf_counter()
        if self._load.fault is not None or not self._load.may_send(now_s):
            self._load.stopped()
            return
        self._sent_s = now_s
        assert self._transport is not None
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: {")
        if events:
            self._load.chunks += events
            self._load.reads += 1
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        load = self._load
        status = self._parser.get_status_code()
        if status != 200:
            load.failed(f"status {status}")
            return
        load.answered += 1
        load.latencies_s.append(perf_counter() - self._sent_s)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_closed:
            self._load.failed(f"connection lost: {exc or 'closed by the other side'}")

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()


@contextmanager
def load_on(url: str) -> Iterator[Load]:
    """Give a load that is closed at the end."""
    load = Load(url)
    try:
        yield load
    finally:
        load.close()
