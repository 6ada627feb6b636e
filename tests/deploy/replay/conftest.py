"""A scripted server: every test says byte for byte what it answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

Answer = Callable[[asyncio.StreamWriter, bytes, int], Awaitable[None]]

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"engine core died","type":"Internal","code":500}}\n\n'
HEAD = (
    b"HTTP/1.1 200 OK\r\nX-Forebay-Instance: e1\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Frame bytes as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def stream_well(writer: asyncio.StreamWriter, _body: bytes, _number: int) -> None:
    """Answer as a healthy engine does, three tokens."""
    writer.write(HEAD + chunk(ROLE))
    for _ in range(3):
        writer.write(chunk(WORD))
    writer.write(chunk(FINISH) + chunk(USAGE) + chunk(DONE) + LAST)


class ScriptedServer:
    """A loopback HTTP/1.1 server that answers by a script and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = stream_well
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def received(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(lambda: len(self.bodies) >= count)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["ScriptedServer"]:
        """Listen on a free loopback port until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 22)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                self.bodies.append(await reader.readexactly(size))
                async with self._news:
                    self._news.notify_all()
                await self.answer(writer, self.bodies[-1], len(self.bodies) - 1)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A scripted server that answers well until told otherwise."""
    async with ScriptedServer().listening() as scripted:
        yield scripted
