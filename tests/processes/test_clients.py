"""Clients that leave, half leave, or hardly read: what they cost both hops, the engine and each other."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import psutil
import pytest
from aiohttp import web

from tests.processes.fleet import Engine, Fleet, until
from tests.routing.figures import percentile

pytestmark = pytest.mark.processes

PATH = "/v1/chat/completions"
LONG = {"model": "sim", "messages": [{"role": "user", "content": "Count the drops"}], "max_tokens": 4000}

#: One event of an engine that never stops, 64 kB.
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 65_400 + b'"},"finish_reason":null}]}\n\n'


#: Most that the kernel holds of a stream: buffers for sending (4 MB) and receiving (6 MB) of three connections.
KERNEL_BYTES = 3 * 10 * 2**20


def request_of(body: object) -> bytes:
    """Give the bytes of a request."""
    content = msgspec.json.encode(body)
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        PATH.encode(),
        len(content),
        content,
    )


@contextlib.asynccontextmanager
async def connected(port: int, body: object) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Give a connection on which a request has been sent; it is reset at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(request_of(body))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def engine_runs(engine: Engine, count: int) -> None:
    """Wait until the engine runs so many requests, and do not look away for long."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + 20
    while await asyncio.to_thread(engine.running) != count:
        assert loop.time() < deadline_s, f"the engine does not come to run {count}"


@pytest.fixture(scope="module")
def fleet(start_fleet) -> Fleet:
    """Give one instance, and a replica before it."""
    return start_fleet(engines=1, replicas=1)


async def time_to_cancel_s(engine: Engine, port: int, body: object) -> float:
    """Seconds from the client's leaving until its engine runs nothing."""
    async with connected(port, body):
        await engine_runs(engine, 1)
    left_s = asyncio.get_running_loop().time()
    await engine_runs(engine, 0)
    return asyncio.get_running_loop().time() - left_s


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "plain"])
async def test_a_client_that_leaves_is_known_at_the_engine_almost_as_soon_as_without_a_gateway(fleet, is_stream):
    """Of 100 requests 95 end on the engine within 100 ms more than requests that were sent to it directly."""
    engine, body = fleet.engines[0], {**LONG, "stream": is_stream}
    engine_port = int(engine.url.rpartition(":")[2])
    direct, through = [], []
    for _ in range(100):
        direct.append(await time_to_cancel_s(engine, engine_port, body))
        through.append(await time_to_cancel_s(engine, fleet.replicas[0].port, body))
    limit_s = percentile(direct, 0.95) + 0.1
    assert sum(each <= limit_s for each in through) >= 95, f"direct {sorted(direct)}, through {sorted(through)}"
    await asyncio.to_thread(fleet.wait_until_idle)


@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "plain"])
async def test_a_client_that_closes_its_half_has_left(fleet, is_stream):
    """After its FIN the request ends on the engine, and the connection ends for the client too."""
    async with connected(fleet.replicas[0].port, {**LONG, "stream": is_stream}) as (reader, writer):
        await engine_runs(fleet.engines[0], 1)
        writer.write_eof()
        await engine_runs(fleet.engines[0], 0)
        async with asyncio.timeout(20):
            while await reader.read(65536):
                pass
    await asyncio.to_thread(fleet.wait_until_idle)


class Flood:
    """An engine that streams without end, as fast as it is let."""

    def __init__(self) -> None:
        self.written = 0
        self.streams = 0
        self.is_idle = asyncio.Event()
        self.port = 0

    async def models(self, _: web.Request) -> web.Response:
        """One model."""
        return web.json_response({"object": "list", "data": [{"id": "sim", "object": "model"}]})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Write until the client leaves."""
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        self.streams += 1
        try:
            while True:
                await reply.write(EVENT)
                self.written += len(EVENT)
        finally:
            self.streams -= 1
            if not self.streams:
                self.is_idle.set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Flood"]:
        """Listen."""
        app = web.Application()
        app.add_routes([web.get("/v1/models", self.models), web.post(PATH, self.stream)])
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


async def trickle(port: int, seconds: float) -> int:
    """Read a stream at 1 kB a second for a while; return how much came."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, request_of({**LONG, "stream": True}))
        read, first, until_s = 0, b"", loop.time() + seconds
        while loop.time() < until_s:
            data = await loop.sock_recv(connection, 100)
            assert data, f"the stream ended after {read} bytes: {first!r}"
            first = (first + data)[:1000]
            read += len(data)
            await asyncio.sleep(0.1)  # the client's own pace, not a wait for anything
        return read


async def test_eight_clients_that_read_a_kilobyte_a_second_cost_little_memory_and_are_not_cut_off(tmp_path):
    """The engine is made to wait, longer than any limit on its silence; both hops hold what buffers hold, no more."""
    async with Flood().serving() as flood:
        with Fleet(tmp_path) as fleet:
            engine = Engine(f"http://127.0.0.1:{flood.port}")
            worker = fleet.start_worker("i1", engine, "--engine-kind", "openai", "--silence-timeout-s", "1")
            replica = fleet.start_replica("--silence-timeout-s", "1")
            await asyncio.to_thread(until, lambda: replica.loads().get("i1", {}).get("models"), "the instance is seen")
            processes = [psutil.Process(part.process.pid) for part in (worker, replica)]
            before = [process.memory_info().rss for process in processes]
            read = await asyncio.gather(*(trickle(replica.port, 5.0) for _ in range(8)))
            grown_mb = [(p.memory_info().rss - rss) / 2**20 for p, rss in zip(processes, before, strict=True)]
            assert all(0 < each < 20_000 for each in read), read
            assert flood.written < 8 * KERNEL_BYTES, "the engine was not made to wait"
            assert max(grown_mb) < 64, grown_mb
            async with asyncio.timeout(20):
                await flood.is_idle.wait()
            await asyncio.to_thread(until, lambda: worker.inflight() == 0, "nothing is under way")
