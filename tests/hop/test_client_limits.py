import asyncio

import pytest

from bus.hop.errors import AnswerBroke, AnswerTooLarge, AnswerTooSlow
from tests.hop.asking import HEAD, LIMIT, get, hello
from tests.hop.scripted import Peer, repeat, until

# -- limits of time


async def test_no_head_in_time_is_too_slow_and_closes(serve, client):
    """The other side sees the close."""
    server = await serve(lambda peer: peer.gone())
    with pytest.raises(AnswerTooSlow, match=r"no answer within 0\.03 s"):
        await get(client(server.url), limit_s=0.03)
    await until(lambda: server.open == 0)


async def test_silence_in_a_body_breaks_it(serve, client):
    """The head came, one byte came, and then nothing."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(b"data: 1\n\n")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    answer.forward(lambda _: None, silence_s=0.03)
    with pytest.raises(AnswerTooSlow, match=r"no byte for 0\.03 s"):
        await answer.ended()
    await until(lambda: server.open == 0)


async def test_silence_counts_from_the_last_byte(serve, client):
    """A stream longer than the limit is not silent while bytes come."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream()
        for _ in range(60):
            peer.chunk(b"x")
            await asyncio.sleep(0.02)  # the pace of this stream
        peer.chunk(b"")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    answer.forward(lambda _: None, silence_s=1.0)
    await answer.ended()
    assert answer.is_complete


async def test_a_shorter_limit_of_silence_holds_from_when_it_is_set(serve, client):
    """The first event may take minutes, the next ones may not: the long limit must not outlive it."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(b"data: 1\n\n")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    answer.forward(lambda _: None, silence_s=600.0)
    answer.forward(lambda _: None, silence_s=0.03)
    async with asyncio.timeout(3.0):
        with pytest.raises(AnswerTooSlow):
            await answer.ended()


async def test_silence_does_not_count_while_reading_is_paused(serve, client):
    """It is this side that does not read."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(b"data: 1\n\n")
        await may_go_on.wait()
        peer.chunk(b"data: 2\n\n")
        peer.chunk(b"")
        await peer.drain()
        has_sent.set()
        await peer.gone()

    may_go_on, has_sent = asyncio.Event(), asyncio.Event()
    server = await serve(script)
    answer = await get(client(server.url))
    answer.forward(lambda _: None, silence_s=0.1)
    answer.pause()
    await asyncio.sleep(0.4)  # four times the limit passes
    assert not answer.end.done()
    may_go_on.set()
    await has_sent.wait()  # it is there already when this side reads on
    answer.resume()
    await answer.ended()


# -- ends


async def test_abort_closes_the_connection(serve, client):
    """Whoever answers sees that nobody wants it any longer; a second abort does nothing."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream(b"data: 1\n\n")
        await peer.gone()
        left.set()

    left = asyncio.Event()
    server = await serve(script)
    answer = await get(client(server.url))
    answer.abort()
    answer.abort()
    async with asyncio.timeout(5.0):
        await left.wait()
    with pytest.raises(AnswerBroke, match="aborted by this side"):
        await answer.ended()


async def test_abort_after_the_end_leaves_the_connection_to_the_next(serve, client):
    """The answer is over, the connection is not its own any longer."""
    server = await serve(lambda peer: repeat(peer, hello))
    hop = client(server.url)
    first = await get(hop)
    await first.ended()
    second = await get(hop)
    first.abort()
    assert await second.body(LIMIT) == b"hello"
    assert len(server.peers) == 1


async def test_cancel_while_waiting_for_the_head_closes_the_connection(serve, client):
    """A client that leaves while its request waits at the engine."""
    server = await serve(lambda peer: peer.gone())
    task = asyncio.create_task(get(client(server.url)))
    await until(lambda: server.open == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.open == 0)


async def test_cancel_while_waiting_for_the_body_closes_the_connection(serve, client):
    """Half a body is of no use to anybody."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"content-length: 10\r\n\r\nhello")
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    task = asyncio.create_task(answer.body(LIMIT))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.open == 0)


async def test_a_body_above_its_limit_is_too_large_and_aborted(serve, client):
    """An endless body is not collected."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.start_stream()
        while True:
            peer.chunk(b"x" * 10_000)
            await peer.drain()

    server = await serve(script)
    answer = await get(client(server.url))
    with pytest.raises(AnswerTooLarge, match="larger than 100000 bytes"):
        await answer.body(100_000)
    await until(lambda: server.open == 0)


async def test_a_sink_that_raises_breaks_only_its_own_answer(serve, client):
    """The other side sees the close; other connections do not care."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.answer(b"hello")
        await peer.gone()

    def bad_sink(_: bytes) -> None:
        raise ZeroDivisionError

    server = await serve(script)
    answer = await get(client(server.url))
    with pytest.raises(ZeroDivisionError):
        answer.forward(bad_sink, silence_s=5.0)
    answer.abort()
    assert await (await get(client(server.url))).body(LIMIT) == b"hello"
