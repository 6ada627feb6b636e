"""A server whose every byte, pause and reset is scripted: what engines and workers do, and what they should not.

Owns the listening socket on loopback, its connections, and the proof that nothing is left of either.
"""

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

#: Longest wait for something that has to happen.
DEADLINE_S = 5.0


async def until(is_so: Callable[[], Any]) -> None:
    """Wait until something can be observed, at most `DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


class Asked:
    """One request as it came."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.raw_head = head
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]
        self.headers = {name.lower(): value for name, value in self.pairs}
        self.body = body


class Peer:
    """One connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: "Server") -> None:
        self.number = len(server.peers)
        self._reader = reader
        self._writer = writer
        self._server = server

    async def asked(self) -> Asked:
        """Read one request. Raises IncompleteReadError when the other side has closed."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(v) for n, _, v in (x.partition(b":") for x in head.lower().split(b"\r\n")) if n == b"content-length"),
            0,
        )
        asked = Asked(head, await self._reader.readexactly(length))
        self._server.asked.append(asked)
        return asked

    def say(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)

    async def say_slowly(self, data: bytes, piece: int = 1) -> None:
        """Write bytes in pieces, each a packet of its own."""
        for start in range(0, len(data), piece):
            self._writer.write(data[start : start + piece])
            await asyncio.sleep(0)

    def answer(self, body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> None:
        """Write a whole answer with its length."""
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        self.say(head.encode() + body)

    def start_stream(self, *events: bytes, more: str = "") -> None:
        """Write the head of an event stream, and its first events."""
        self.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n")
        self.say(more.encode() + b"\r\n")
        for event in events:
            self.chunk(event)

    def chunk(self, data: bytes) -> None:
        """Write one chunk of a body; an empty one ends it."""
        self.say(b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the other side has taken what was written."""
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the other side has closed, whatever it still sends."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        """End the connection in order."""
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a reset, dropping what is not yet sent."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class Server:
    """A listening socket that plays a script to each connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.asked: list[Asked] = []
        self.open = 0
        """Connections whose other end has not gone."""
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> "Server":
        """Listen on a port of the system's choice."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        peer = Peer(reader, writer, self)
        self.peers.append(peer)
        try:
            await self.script(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has gone
        except asyncio.CancelledError:
            pass  # the test is over; the stream server of asyncio logs a cancelled callback
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def stop_listening(self) -> None:
        """Take no new connection; those that are open stay."""
        self._server.close()

    async def close(self) -> None:
        """End every script, and listen no more."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await until(lambda: not self._tasks)


Serve = Callable[[Script], Awaitable[Server]]


async def repeat(peer: Peer, respond: Callable[[Peer, Asked], Awaitable[None] | None]) -> None:
    """Answer one request after the other on a connection."""
    while True:
        result = respond(peer, await peer.asked())
        if result is not None:
            await result


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted servers; in the end no task is left, and nothing has failed where nobody looked."""
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    before = asyncio.all_tasks()
    servers: list[Server] = []

    async def start(script: Script) -> Server:
        server = await Server(script).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()
    mine = asyncio.current_task()
    await until(lambda: not [task for task in asyncio.all_tasks() - before if task is not mine and not task.done()])
    gc.collect(1)
    assert unseen == [], unseen


class Caller:
    """A client on a connection of its own, which reads only as far as it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def dial(cls, url: str) -> "Caller":
        """Connect."""
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @classmethod
    async def ask(
        cls, url: str, path: str, body: bytes = b"", *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> "Caller":
        """Connect and send a whole request."""
        caller = await cls.dial(url)
        caller.say(head_of(method, path, len(body), headers) + body)
        return caller

    def say(self, data: bytes) -> None:
        """Write bytes of a request."""
        self._writer.write(data)

    @property
    def has_bytes(self) -> bool:
        """Whether something of an answer has come that was not read yet."""
        return bool(self._reader._buffer)

    async def head(self) -> int:
        """Read status and headers; the status."""
        async with asyncio.timeout(DEADLINE_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        return self.status

    async def piece(self) -> bytes:
        """Read one chunk of the body; empty at its end. Raises IncompleteReadError if it has none."""
        async with asyncio.timeout(DEADLINE_S):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            return data

    async def body(self) -> bytes:
        """Read what is left of the body."""
        if "content-length" in self.headers:
            async with asyncio.timeout(DEADLINE_S):
                return await self._reader.readexactly(int(self.headers["content-length"]))
        parts = []
        while data := await self.piece():
            parts.append(data)
        return b"".join(parts)

    async def answer(self) -> tuple[int, bytes]:
        """Read status and body."""
        return await self.head(), await self.body()

    async def ended(self) -> None:
        """Wait until the server closes the connection, in order and with nothing more to say."""
        async with asyncio.timeout(DEADLINE_S):
            assert await self._reader.read() == b""

    def leave(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


def head_of(method: str, path: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    """Head of a request with a body of `length` bytes."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Callers:
    """Makes callers, and closes those that are left."""

    def __init__(self) -> None:
        self._made: list[Caller] = []

    async def ask(self, url: str, path: str, body: bytes = b"", **more: Any) -> Caller:
        """Connect and send a whole request."""
        self._made.append(await Caller.ask(url, path, body, **more))
        return self._made[-1]

    async def dial(self, url: str) -> Caller:
        """Connect, and say nothing yet."""
        self._made.append(await Caller.dial(url))
        return self._made[-1]

    def close(self) -> None:
        """Close all."""
        for caller in self._made:
            caller.leave()
