"""A fast engine, so that the relays are measured and not what stands behind them. A process of its own.

Plain requests are answered at once. A stream sends `max_tokens` events of about 250 bytes, each with a write of its
own: as fast as the loop turns, or one every `pace_ms` milliseconds where the body says so. Nothing else is looked at.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec
import uvloop

MODEL = "bench"

#: Bytes of one streamed event: what vLLM sends for one token of a chat completion.
CHUNK_BYTES = 250


class _Body(msgspec.Struct):
    stream: bool = False
    max_tokens: int = 16
    pace_ms: float = 0.0


_decode = msgspec.json.Decoder(_Body).decode


def _padded(head: bytes, tail: bytes, size: int) -> bytes:
    return head + b"x" * (size - len(head) - len(tail)) + tail


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


_EVENT = _padded(
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":"',
    b'"},"logprobs":null,"finish_reason":null}]}\n\n',
    CHUNK_BYTES,
)
_CHUNK = _framed(_EVENT)
_END = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _page(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


_PLAIN = _page(
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"The lake is calm and full of water this morning."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":120,"completion_tokens":16,"total_tokens":136}}'
)
_MODELS = _page(msgspec.json.encode({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
_MISSING = _page(b'{"error":{"message":"not found"}}', b"404 Not Found")


class _Engine(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._write(_MODELS if self._url == b"/v1/models" else _MISSING)
            return
        asked = _decode(b"".join(self._body))
        if not asked.stream:
            self._write(_PLAIN)
            return
        self._write(_STREAM_HEAD)
        self._send(asked.max_tokens, asked.pace_ms / 1000, self._loop.time())

    def _send(self, left: int, pace_s: float, due_s: float) -> None:
        """Write one event and have the next one written: a turn of the loop later, or when it is due."""
        if self._transport is None or self._transport.is_closing():
            return
        if not left:
            self._write(_END)
            return
        self._write(_CHUNK)
        if pace_s:
            self._loop.call_at(due_s + pace_s, self._send, left - 1, pace_s, due_s + pace_s)
        else:
            self._loop.call_soon(self._send, left - 1, pace_s, due_s)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(ready: Callable[[int], None]) -> None:
    """Listen on a free loopback port, tell it, serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(_Engine, "127.0.0.1", 0, backlog=1024)
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(lambda port: print(port, flush=True)))
