import asyncio
import contextlib

import psutil
import pytest

from tests.chaos.links import Link
from tests.hop.scripted import until


class Echo(asyncio.Protocol):
    """A server that says what it hears."""

    def connection_made(self, transport):
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data):
        """Say it again."""
        self.transport.write(data)

    def eof_received(self):
        """Say that this was the end, and end."""
        self.transport.write(b"end")
        return False


@pytest.fixture
async def link():
    """Give a link to a server that echoes."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with server:
        link = await Link(server.sockets[0].getsockname()[:2]).start()
        yield link
        await link.stop()


@contextlib.asynccontextmanager
async def connection(link: Link):
    """Give a connection over the link that has been used."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"first")
    assert await reader.readexactly(5) == b"first"
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_pass_both_ways_in_order_and_whole(link):
    """A megabyte written at once, before the link has connected even, comes back as it was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    sent = bytes(range(256)) * 4096
    writer.write(sent)
    assert await asyncio.wait_for(reader.readexactly(len(sent)), 10) == sent
    writer.close()


async def test_the_end_of_one_direction_passes_and_the_other_goes_on(link):
    """A half-closed connection still brings what the other side has to say."""
    async with connection(link) as (reader, writer):
        writer.write(b"last")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b"lastend"
    assert link.pairs == set()


async def test_connections_that_ended_in_order_leave_nothing_open(link):
    """Whichever side ends first: a connection that is over on both sides holds no file."""
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(20):
        async with connection(link) as (reader, writer):
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 10)
    await until(lambda: process.num_fds() <= before + 2)


async def test_a_delay_holds_for_each_direction(link):
    """With 100 ms each way an echo takes at least 200."""
    async with connection(link) as (reader, writer):
        link.delay_s = 0.1
        began_s = asyncio.get_running_loop().time()
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(5), 10) == b"hello"
        assert asyncio.get_running_loop().time() - began_s >= 0.195


async def test_a_throttled_link_passes_so_many_bytes_a_second(link):
    """At 10 kB a second 2 kB take at least a fifth of a second."""
    async with connection(link) as (reader, writer):
        link.bytes_per_s = 10_000.0
        began_s = asyncio.get_running_loop().time()
        writer.write(b"x" * 2000)
        await asyncio.wait_for(reader.readexactly(2000), 10)
        assert asyncio.get_running_loop().time() - began_s >= 0.195


async def test_a_reset_is_seen_as_one(link):
    """Both sides get RST, not an orderly end."""
    async with connection(link) as (reader, _):
        link.reset()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)


async def test_half_open_connections_are_silent_and_new_ones_are_well(link):
    """What is sent over them vanishes, nobody is told; healed, they are reset."""
    async with connection(link) as (reader, writer):
        link.lose("open")
        writer.write(b"hello?")
        async with connection(link) as (_, other):
            assert not other.is_closing()
        assert not reader.at_eof()
        link.heal()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)


async def test_a_link_that_loses_everything_takes_new_connections_and_says_nothing(link):
    """They stand, and stay silent until it is healed."""
    link.lose("all")
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"hello?")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    link.heal()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 10)
    async with connection(link):
        pass
