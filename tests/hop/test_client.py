"""The hop against servers that answer well, late, in pieces, too much, nonsense or not at all."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bus.hop.client import HopClient
from bus.hop.errors import AnswerBroke, CannotConnect
from tests.hop.asking import HEAD, LIMIT, get, hello
from tests.hop.scripted import Asked, Peer, Server, repeat, until

# -- connections and their reuse


async def test_a_request_is_written_as_it_should_be(serve, client):
    """Request line, host, the headers given, and the length of a body; nothing else."""
    server = await serve(lambda peer: repeat(peer, hello))
    hop = client(server.url + "/prefix/")
    await (await get(hop, "/v1/x?q=1", method="POST", body=b"{}")).body(LIMIT)
    await (await get(hop)).body(LIMIT)
    host = server.url.removeprefix("http://")
    assert server.asked[0].raw_head == (
        f"POST /prefix/v1/x?q=1 HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\ncontent-length: 2\r\n\r\n".encode()
    )
    assert server.asked[0].body == b"{}"
    assert "content-length" not in server.asked[1].headers


async def test_a_connection_is_used_again(serve, client):
    """Three requests one after the other need one connection."""
    server = await serve(lambda peer: repeat(peer, hello))
    hop = client(server.url)
    for _ in range(3):
        assert await (await get(hop)).body(LIMIT) == b"hello"
    assert len(server.peers) == 1


async def test_requests_at_once_have_connections_of_their_own(serve, client):
    """Two at once need two; afterwards both are idle and the newer is taken first."""
    server = await serve(lambda peer: repeat(peer, hello))
    hop = client(server.url)
    answers = await asyncio.gather(get(hop), get(hop))
    assert [await answer.body(LIMIT) for answer in answers] == [b"hello", b"hello"]
    assert await (await get(hop)).body(LIMIT) == b"hello"
    assert len(server.peers) == 2


async def test_a_connection_idle_for_too_long_is_replaced(serve, client):
    """The server may be about to close it."""
    server = await serve(lambda peer: repeat(peer, hello))
    hop = client(server.url, idle_s=0.0)
    await (await get(hop)).body(LIMIT)
    await asyncio.sleep(0.002)  # the clock of the loop has to move
    await (await get(hop)).body(LIMIT)
    await until(lambda: server.open == 1)
    assert len(server.peers) == 2


async def test_an_answer_that_closes_is_not_reused(serve, client):
    """`connection: close` is believed."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.answer(b"hello", more="connection: close\r\n")
        await peer.gone()

    server = await serve(script)
    hop = client(server.url)
    for _ in range(2):
        assert await (await get(hop)).body(LIMIT) == b"hello"
    assert len(server.peers) == 2


@pytest.mark.parametrize("end", ["reset", "close"])
async def test_a_reused_connection_that_ends_before_a_byte_is_replaced_once(serve, client, end):
    """The server closes its idle connection just as the second request comes: it goes over a fresh one."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.answer(b"hello")
        if peer.number == 0:
            await peer.asked()
            getattr(peer, end)()
        else:
            await repeat(peer, hello)

    server = await serve(script)
    hop = client(server.url)
    for _ in range(2):
        assert await (await get(hop, method="POST", body=b"{}")).body(LIMIT) == b"hello"
    assert len(server.peers) == 2
    assert len(server.asked) == 3


async def test_of_many_dead_idle_connections_one_is_tried_and_then_a_fresh_one(serve, client):
    """A request that kills its server is not sent once for every connection that had been idle."""
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await gate.wait()
        peer.answer(b"hello")
        await peer.asked()
        peer.reset()

    server = await serve(script)
    hop = client(server.url)
    three = [asyncio.create_task(get(hop)) for _ in range(3)]
    await until(lambda: len(server.asked) == 3)
    gate.set()
    for answer in await asyncio.gather(*three):
        await answer.body(LIMIT)
    answer = await get(hop)
    assert await answer.body(LIMIT) == b"hello"
    assert len(server.asked) == 3 + 2


async def test_a_fresh_connection_that_ends_before_a_byte_is_a_failure(serve, client):
    """Sent once, and not again."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.reset()

    server = await serve(script)
    with pytest.raises(AnswerBroke):
        await get(client(server.url))
    assert len(server.asked) == 1


async def test_a_reused_connection_that_ends_after_a_byte_is_a_failure(serve, client):
    """The server has begun to answer: sending it again would be doing it twice."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.answer(b"hello")
        await peer.asked()
        peer.say(b"HTTP/1.1 2")
        await peer.drain()
        peer.close()

    server = await serve(script)
    hop = client(server.url)
    await (await get(hop)).body(LIMIT)
    with pytest.raises(AnswerBroke):
        await get(hop)
    assert len(server.asked) == 2


async def test_bytes_that_nobody_asked_for_close_an_idle_connection(serve, client):
    """They would be taken for the next answer."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.answer(b"hello")
        if peer.number == 0:
            peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
            await peer.gone()
        await repeat(peer, hello)

    server = await serve(script)
    hop = client(server.url)
    assert await (await get(hop)).body(LIMIT) == b"hello"
    await until(lambda: server.open == 0)
    assert await (await get(hop)).body(LIMIT) == b"hello"
    assert len(server.peers) == 2


async def test_a_second_answer_in_the_same_read_is_not_part_of_the_first(serve, client):
    """The first one ends as it is; the connection is not used again."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"content-length: 2\r\n\r\nokHTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\nevil")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    assert (answer.status, await answer.body(LIMIT)) == (200, b"ok")
    await until(lambda: server.open == 0)


async def test_nothing_listens(serve, client):
    """Nothing was sent, so the error says that it could not connect; clients read it, and it names no address."""
    server = await serve(lambda peer: repeat(peer, hello))
    await server.close()
    with pytest.raises(CannotConnect) as fault:
        await get(client(server.url))
    assert str(fault.value) == "no connection: Connection refused"


async def test_close_closes_what_is_idle(serve, client):
    """And what is in use when its answer ends."""
    gates = [asyncio.Event(), asyncio.Event()]

    async def script(peer: Peer) -> None:
        await peer.asked()
        await gates[peer.number].wait()
        peer.answer(b"hello")
        await peer.gone()

    server = await serve(script)
    hop = client(server.url)
    tasks = [asyncio.create_task(get(hop)) for _ in range(2)]
    await until(lambda: len(server.asked) == 2)
    gates[0].set()
    await until(lambda: hop._idle)
    hop.close()
    await until(lambda: server.open == 1)
    gates[1].set()
    assert [await answer.body(LIMIT) for answer in await asyncio.gather(*tasks)] == [b"hello", b"hello"]
    await until(lambda: server.open == 0)


@pytest.mark.parametrize("origin", ["", "127.0.0.1:80", "ftp://x", "http://", "unix:/x"])
def test_an_origin_must_be_http(origin):
    """Said when the client is made, not at the first request."""
    with pytest.raises(ValueError, match="must be http"):
        HopClient(origin)


@pytest.fixture
def kept(serve, client):
    """Give a client with a kept connection to a server that breaks on /break as it is told to."""

    async def make(break_on: Callable[[Server, Peer], Awaitable[None]]) -> tuple[Server, HopClient]:
        async def respond(peer: Peer, asked: Asked) -> None:
            if asked.target == "/break":
                await break_on(server, peer)
            else:
                peer.answer(b"hello")

        server = await serve(lambda peer: repeat(peer, respond))
        hop = client(server.url)
        await (await get(hop)).body(LIMIT)
        return server, hop

    return make


async def test_who_goes_on_a_reused_connection_and_listens_no_more_has_broken(kept):
    """A process that died of the request, not a connection that was closed while it was idle."""

    async def die(server: Server, peer: Peer) -> None:
        await server.stop_listening()
        peer.reset()

    _, hop = await kept(die)
    with pytest.raises(AnswerBroke):
        await get(hop, "/break")
    with pytest.raises(CannotConnect):
        await get(hop)


async def test_a_reused_connection_that_ends_after_a_while_has_broken_on_the_request(kept, monkeypatch):
    """It was worked on: to send it again would be to send it twice."""
    monkeypatch.setattr("bus.hop.client.STALE_S", 0.01)

    async def work_and_break(_: Server, peer: Peer) -> None:
        await asyncio.sleep(0.02)  # longer than a connection that was closed takes to end
        peer.reset()

    server, hop = await kept(work_and_break)
    with pytest.raises(AnswerBroke):
        await get(hop, "/break")
    assert [asked.target for asked in server.asked].count("/break") == 1
