import asyncio

import pytest

from bus.hop.connection import MAX_HEADER_BYTES
from bus.hop.errors import AnswerBroke
from tests.hop.asking import HEAD, LIMIT, get
from tests.hop.scripted import Peer, repeat, until

# -- bodies

CHUNKED = (
    HEAD
    + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"5\r\nhello\r\n1;name=value\r\n \r\n00a\r\nwide world\r\n0\r\ntrailer: x\r\n\r\n"
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 50, 1000])
async def test_chunks_may_be_split_anywhere(serve, client, piece):
    """However the bytes come the body is the same, and the connection can be used again."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.asked()
            await peer.say_slowly(CHUNKED, piece)

    server = await serve(script)
    hop = client(server.url)
    for _ in range(2):
        answer = await get(hop)
        assert answer.content_type == b"text/event-stream"
        assert await answer.body(LIMIT) == b"hello wide world"
    assert len(server.peers) == 1


async def test_a_body_may_end_with_the_connection(serve, client):
    """No length, no chunks: the end of the connection is the end of the body."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"\r\nhello")
        await peer.drain()
        peer.close()

    server = await serve(script)
    answer = await get(client(server.url))
    assert await answer.body(LIMIT) == b"hello"
    assert answer.is_complete


async def test_a_body_that_ends_with_a_reset_is_broken(serve, client):
    """A reset is no end."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"\r\nhello")
        await gate.wait()
        peer.reset()

    gate = asyncio.Event()
    server = await serve(script)
    answer = await get(client(server.url))
    gate.set()
    with pytest.raises(AnswerBroke):
        await answer.body(LIMIT)


@pytest.mark.parametrize(
    "half",
    [
        b"content-length: 10\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ],
)
async def test_a_truncated_body_is_broken_and_never_an_end(serve, client, half):
    """The connection ends in order, the body does not."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + half)
        await peer.drain()
        peer.close()

    server = await serve(script)
    answer = await get(client(server.url))
    with pytest.raises(AnswerBroke):
        await answer.body(LIMIT)
    assert not answer.is_complete


async def test_an_answer_to_head_has_no_body(serve, client):
    """Its length is that of the body it does not carry."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"content-length: 1000\r\n\r\n")
        await peer.gone()

    server = await serve(script)
    assert await (await get(client(server.url), method="HEAD")).body(LIMIT) == b""


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_some_statuses_have_no_body(serve, client, status):
    """And the connection can be used again."""

    async def script(peer: Peer) -> None:
        await repeat(peer, lambda peer, _: peer.say(b"HTTP/1.1 " + status + b"\r\n\r\n"))

    server = await serve(script)
    hop = client(server.url)
    for _ in range(2):
        answer = await get(hop)
        assert (answer.status, await answer.body(LIMIT)) == (int(status[:3]), b"")
    assert len(server.peers) == 1


@pytest.mark.parametrize("piece", [1, 1000])
async def test_interim_answers_are_passed_over(serve, client, piece):
    """100 and 103 come before the answer and are none."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.say_slowly(interim + HEAD + b"content-length: 5\r\n\r\nhello", piece)
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    assert (answer.status, answer.headers) == (200, [(b"content-length", b"5")])
    assert await answer.body(LIMIT) == b"hello"


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ],
)
async def test_what_is_no_answer_breaks_and_the_connection_is_closed(serve, client, garbage):
    """Before the head it is an AnswerBroke; the other side sees the close."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(garbage)
        await peer.gone()

    server = await serve(script)
    with pytest.raises(AnswerBroke):
        await get(client(server.url))
    await until(lambda: server.open == 0)


async def test_a_malformed_chunk_breaks_a_body_that_has_begun(serve, client):
    """What came before it stays what it is."""
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await gate.wait()
        peer.say(b"zz\r\n")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    seen: list[bytes] = []
    answer.forward(seen.append, silence_s=5.0)
    gate.set()
    with pytest.raises(AnswerBroke):
        await answer.ended()
    assert b"".join(seen) == b"hello"


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["many lines", "one line without end"])
async def test_headers_that_are_too_large_break_the_answer(serve, client, end):
    """They are not collected: neither as many headers nor as one that never ends."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"x: ")
        while True:
            peer.say(b"y" * 1000 + (b"\r\nx: " if end else b""))
            await peer.drain()
            sent.append(1000)

    sent: list[int] = []
    server = await serve(script)
    with pytest.raises(AnswerBroke):
        await get(client(server.url))
    await until(lambda: server.open == 0)
    assert sum(sent) < 100 * MAX_HEADER_BYTES
