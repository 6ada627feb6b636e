"""A relayed reply between a scripted engine and a raw client: bytes, backpressure, and a reader that leaves."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from bus.hop.client import HopClient
from bus.hop.errors import ClientLeft, HopFailed
from bus.hop.openai_error import error_event
from bus.hop.reply import StreamReply, _Stall
from bus.hop.server import Listener, PortBusy
from tests.hop.scripted import Peer, Server, until

Relayed = Callable[[Server], Awaitable["Gateway"]]


class Gateway:
    """A listener that relays every request to one origin; the plainest user of the hop."""

    def __init__(self, origin: str) -> None:
        self.client = HopClient(origin)
        self.replies: list[StreamReply] = []
        self.ends: list[str] = []
        self.listener = Listener.of_handler(self.handle, "127.0.0.1", 0, body_limit=10**6)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Relay one request, and note how it ended."""
        end = "cancelled"
        answer = await self.client.exchange("GET", request.raw_path, [], b"", head_timeout_s=5.0)
        try:
            reply = await StreamReply.start(request, answer.status, [("content-type", "text/event-stream")])
            self.replies.append(reply)
            try:
                await reply.relay(answer, silence_s=5.0)
                end = "complete"
            except HopFailed:
                end = "broken"
                if reply.ends_at_event:
                    reply.write(error_event("broke", kind="upstream_error"))
            return reply.response
        finally:
            self.ends.append(end)
            answer.abort()


class Reader:
    """A client that reads only when it is told to, with a small receive buffer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)

    async def ask(self, version: str = "1.1") -> None:
        """Send a request that ends the connection."""
        head = f"GET /x HTTP/{version}\r\nhost: x\r\nconnection: close\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(self._socket, head.encode())

    async def rest(self) -> tuple[bytes, bytes]:
        """Head and body up to the end of the connection, as they stand on the wire."""
        loop, parts = asyncio.get_running_loop(), []
        while data := await loop.sock_recv(self._socket, 1_000_000):
            parts.append(data)
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        return head.lower(), body

    def half_close(self) -> None:
        """Say that nothing more is asked."""
        self._socket.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Close without reading what is there: the other side gets a reset."""
        self._socket.close()


def unchunked(body: bytes) -> bytes:
    """Content of a chunked body that is whole."""
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content += body[:length]
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
        if not length:
            assert body == b""
            return content


@pytest.fixture
async def relayed(serve) -> AsyncIterator[Relayed]:
    """Put a gateway before a scripted server."""
    gateways: list[Gateway] = []

    async def make(server: Server) -> Gateway:
        gateway = Gateway(server.url)
        gateways.append(gateway)
        await gateway.listener.start()
        return gateway

    yield make
    for gateway in gateways:
        await gateway.listener.stop()
        gateway.client.close()


@pytest.fixture
def reader() -> AsyncIterator[Callable[[int], Reader]]:
    """Make readers that are closed with the test."""
    made: list[Reader] = []

    def make(port: int) -> Reader:
        made.append(Reader(port))
        return made[-1]

    yield make
    for one in made:
        one.leave()


EVENTS = [b'data: {"n":%d}\n\n' % n for n in range(200)]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_arrives_byte_for_byte(serve, relayed, reader, version):
    """In chunks of ours for HTTP/1.1, bare and ended by the connection for HTTP/1.0."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(*EVENTS)
        peer.chunk(b"")
        await peer.gone()

    gateway = await relayed(await serve(script))
    client = reader(gateway.listener.port)
    await client.ask(version)
    head, body = await client.rest()
    assert head.startswith(f"http/{version} 200 ok".encode())
    assert (b"transfer-encoding: chunked" in head) is (version == "1.1")
    assert (unchunked(body) if version == "1.1" else body) == b"".join(EVENTS)
    assert gateway.ends == ["complete"]


async def test_a_slow_reader_makes_the_sender_wait_and_little_is_kept(serve, relayed, reader):
    """Thirty megabytes for a reader who does not read: they stay with the sender, and arrive when they are read."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream()
        for _ in range(300):
            peer.chunk(b"x" * 100_000)
            await peer.drain()
            sent.append(100_000)
        peer.chunk(b"")
        await peer.gone()

    sent: list[int] = []
    gateway = await relayed(await serve(script))
    client = reader(gateway.listener.port)
    await client.ask()
    await until(lambda: gateway.replies and gateway.replies[0]._draining is not None)
    transport = gateway.replies[0]._transport
    before = -1
    while sum(sent) != before:  # whatever the sockets hold
        before = sum(sent)
        await asyncio.sleep(0.05)
    assert transport.get_write_buffer_size() < 2_000_000
    assert sum(sent) < 25_000_000
    _, body = await client.rest()
    assert len(unchunked(body)) == 30_000_000
    assert gateway.ends == ["complete"]


async def test_a_reader_that_stays_and_takes_nothing_has_left(serve, relayed, reader, monkeypatch):
    """It would hold its place at the engine for ever; the source sees the close."""
    monkeypatch.setattr("bus.hop.reply.STALLED_S", 0.1)

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream()
        while True:
            peer.chunk(b"x" * 100_000)
            await peer.drain()

    server = await serve(script)
    gateway = await relayed(server)
    client = reader(gateway.listener.port)
    await client.ask()
    await until(lambda: gateway.ends == ["cancelled"])
    await until(lambda: server.open == 0)


@pytest.mark.parametrize("takes_bytes", [10_000, 0])
async def test_a_reader_that_takes_a_little_is_waited_for_and_one_that_takes_nothing_is_not(monkeypatch, takes_bytes):
    """However slowly: each time some of it has gone the time begins anew."""
    monkeypatch.setattr("bus.hop.reply.STALLED_S", 0.001)
    left, looks, aborted = [1_000_000], [0], asyncio.Event()

    class Transport:
        def get_write_buffer_size(self) -> int:
            left[0] -= takes_bytes
            looks[0] += 1
            return left[0]

        def abort(self) -> None:
            aborted.set()

    stall = _Stall(Transport())
    await until(lambda: aborted.is_set() if not takes_bytes else looks[0] > 5)
    assert aborted.is_set() is not bool(takes_bytes)
    stall.end()


@pytest.mark.parametrize("is_slow", [False, True], ids=["idle", "paused"])
async def test_a_reader_that_leaves_ends_the_stream_at_its_source(serve, relayed, reader, is_slow):
    """Between two events, or with the sender paused: the source sees the close and nothing is left behind."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(EVENTS[0])
        if is_slow:
            while True:
                peer.chunk(b"x" * 100_000)
                await peer.drain()
        await peer.gone()

    server = await serve(script)
    gateway = await relayed(server)
    client = reader(gateway.listener.port)
    await client.ask()
    await until(lambda: gateway.replies and (gateway.replies[0]._draining is not None or not is_slow))
    client.leave()
    await until(lambda: server.open == 0)
    await until(lambda: gateway.ends == ["cancelled"])


async def test_how_an_answer_ends_is_known_though_its_reader_leaves(serve, relayed, reader):
    """One that half closes while much is unread: its engine has answered whole, and must not be blamed."""
    ends = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(EVENTS[0])
        while not ends.is_set():
            if unsent() < 32_000:  # less than what makes the sender wait
                peer.chunk(b"x" * 16_000)
            await asyncio.sleep(0)
        peer.chunk(b"data: [DONE]\n\n")
        peer.chunk(b"")
        await peer.drain()

    def unsent() -> int:
        return gateway.replies[0]._transport.get_write_buffer_size() if gateway.replies else 0

    gateway = await relayed(await serve(script))
    client = reader(gateway.listener.port)
    await client.ask()
    await until(lambda: unsent() >= 32_000)
    client.half_close()
    await until(lambda: gateway.replies[0]._transport.is_closing())
    ends.set()
    await until(lambda: gateway.replies[0].ends_well)


async def test_a_reader_that_leaves_in_the_very_turn_in_which_its_answer_begins_is_no_fault(reader):
    """The handler is told that the client has left, before it is cancelled; the library's own error does not come."""
    ends: list[ClientLeft] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        request.transport.abort()
        try:
            return (await StreamReply.start(request, 200, [])).response
        except ClientLeft as end:
            ends.append(end)
            raise

    listener = Listener.of_handler(handle, "127.0.0.1", 0, body_limit=10**6)
    await listener.start()
    await reader(listener.port).ask()
    await until(lambda: ends)
    await listener.stop()


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [1, 2, 3, 1000])
async def test_after_a_break_an_event_may_follow_only_a_whole_event(serve, relayed, reader, end, last):
    """Whichever line end the engine has, and however its last event was cut in two reads."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        event = b"data: 1" + end
        peer.start_stream(event[:-last] or event)
        if event[:-last]:
            await until(lambda: gateway.replies and gateway.replies[0]._last)
            peer.chunk(event[-last:])
            await peer.drain()
            await until(lambda: gateway.replies[0]._last.endswith(b"\n"))
        peer.reset()

    server = await serve(script)
    gateway = await relayed(server)
    client = reader(gateway.listener.port)
    await client.ask()
    _, body = await client.rest()
    assert unchunked(body) == b"data: 1" + end + error_event("broke", kind="upstream_error")


async def test_half_an_event_is_not_followed_by_another(serve, relayed, reader):
    """The error would become part of it."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(b"data: 1\n\ndata: 2")
        await until(lambda: gateway.replies and gateway.replies[0]._last)
        peer.reset()

    gateway = await relayed(await serve(script))
    client = reader(gateway.listener.port)
    await client.ask()
    _, body = await client.rest()
    assert unchunked(body) == b"data: 1\n\ndata: 2"
    assert gateway.ends == ["broken"]


async def test_a_busy_port_is_said_in_one_line(serve, relayed):
    """Address and reason."""
    gateway = await relayed(await serve(lambda peer: peer.gone()))
    other = Listener.of_handler(gateway.handle, "127.0.0.1", gateway.listener.port, body_limit=1)
    with pytest.raises(PortBusy, match=f"cannot listen on 127.0.0.1:{gateway.listener.port}: already in use"):
        await other.start()


@pytest.fixture
async def asked(reader) -> AsyncIterator[tuple[Listener, Reader]]:
    """Give a listener that has 30 MB in one piece under way to a reader that has taken none of it."""

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"x" * 30_000_000)

    listener = Listener.of_handler(handle, "127.0.0.1", 0, body_limit=10**6)
    await listener.start()
    client = reader(listener.port)
    await client.ask()
    await until(lambda: listener.under_way)
    yield listener, client
    await listener.stop()


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Let a reader that takes nothing have left soon."""
    monkeypatch.setattr("bus.hop.reply.STALLED_S", 0.05)


async def test_a_reader_that_takes_nothing_of_a_plain_answer_has_left(impatient, asked):
    """It holds no connection and no memory for ever; the listener is finished then."""
    listener, _ = asked
    async with asyncio.timeout(10):
        await listener.finished()


async def test_a_listener_is_not_finished_while_a_reader_takes_its_answer(asked):
    """Also what the handler has left to the transport."""
    listener, client = asked
    finished = asyncio.create_task(listener.finished())
    await asyncio.sleep(0)
    assert not finished.done()
    _, body = await client.rest()
    assert len(body) == 30_000_000
    await finished
