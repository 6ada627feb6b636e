"""The hop against servers that answer well, late, in pieces, too much, nonsense or not at all."""

import asyncio

import pytest

from bus.hop.answer import HELD_BYTES, Answer
from bus.hop.client import HopClient
from bus.hop.connection import MAX_HEADER_BYTES
from bus.hop.errors import AnswerBroke, AnswerTooLarge, AnswerTooSlow, CannotConnect, HopFailed
from tests.hop.scripted import Asked, Peer, repeat, until

HEAD = b"HTTP/1.1 200 OK\r\n"
LIMIT = 10_000_000


async def get(
    hop: HopClient, target: str = "/x", *, method: str = "GET", body: bytes = b"", limit_s: float = 5.0
) -> Answer:
    """Send one request and wait for the head of its answer."""
    return await hop.exchange(method, target, [(b"accept", b"*/*")], body, head_timeout_s=limit_s)


def hello(peer: Peer, _: Asked) -> None:
    """Answer well."""
    peer.answer(b"hello")


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
    """Nothing was sent, so the error says that it could not connect."""
    server = await serve(lambda peer: repeat(peer, hello))
    await server.close()
    with pytest.raises(CannotConnect):
        await get(client(server.url))


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


# -- much


async def test_a_large_request_body_arrives_whole(serve, client):
    """Twenty megabytes, larger than any buffer on the way."""

    async def script(peer: Peer) -> None:
        asked = await peer.asked()
        peer.answer(str(len(asked.body)).encode())
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url), method="POST", body=b"x" * 20_000_000)
    assert await answer.body(LIMIT) == b"20000000"


async def test_without_a_sink_little_is_held_and_the_sender_waits(serve, client):
    """Ten megabytes are sent: what nobody has asked for stays with the sender, and comes when it is."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"content-length: 10000000\r\n\r\n" + b"x" * 10_000_000)
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    await until(lambda: answer._held_bytes > HELD_BYTES)
    for _ in range(20):
        await asyncio.sleep(0)
    assert answer._held_bytes < 2 * HELD_BYTES + 1_000_000
    assert server.peers[0].unsent > 0
    assert len(await answer.body(LIMIT)) == 10_000_000


async def test_a_paused_answer_makes_the_sender_wait(serve, client):
    """Only what was on its way still comes."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        peer.say(HEAD + b"content-length: 10000000\r\n\r\n" + b"x" * 10_000_000)
        await peer.gone()

    server = await serve(script)
    answer = await get(client(server.url))
    size = 0

    def take(data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > 500_000 and not is_full.is_set():
            is_full.set()
            answer.pause()

    is_full = asyncio.Event()
    answer.forward(take, silence_s=5.0)
    await is_full.wait()
    seen = size
    for _ in range(50):
        await asyncio.sleep(0)
    assert size == seen
    answer.resume()
    await answer.ended()
    assert size == 10_000_000


async def test_a_connection_that_was_paused_at_the_end_of_an_answer_is_reused_unpaused(serve, client):
    """A body larger than may be held ends while reading is paused, and nobody takes it."""

    async def script(peer: Peer) -> None:
        await repeat(peer, lambda peer, asked: peer.answer(b"x" * int(asked.target[1:])))

    server = await serve(script)
    hop = client(server.url)
    first = await get(hop, f"/{HELD_BYTES + 1}")
    await first.ended()
    assert await (await get(hop, "/5")).body(LIMIT) == b"xxxxx"
    assert len(server.peers) == 1


async def test_a_storm_of_failures_leaves_nothing(serve, client):
    """Two hundred requests that end in every way: in the end no connection is left but idle ones."""

    async def respond(peer: Peer, asked: Asked) -> None:
        way = int(asked.target.removeprefix("/"))
        if way == 0:
            peer.answer(b"hello")
        elif way == 1:
            peer.reset()
        elif way == 2:
            peer.say(HEAD + b"content-length: 10\r\n\r\nhalf")
            await peer.drain()
            peer.close()
        elif way == 3:
            peer.say(b"garbage\r\n\r\n")
        else:
            await peer.gone()

    async def one(way: int) -> str:
        try:
            body = await (await get(hop, f"/{way}", limit_s=0.05 if way == 4 else 5.0)).body(LIMIT)
        except HopFailed as fault:
            return type(fault).__name__
        return body.decode()

    server = await serve(lambda peer: repeat(peer, respond))
    hop = client(server.url)
    ends = await asyncio.gather(*(one(index % 5) for index in range(200)))
    assert ends[:5] == ["hello", "AnswerBroke", "AnswerBroke", "AnswerBroke", "AnswerTooSlow"]
    assert ends == ends[:5] * 40
    await until(lambda: server.open == len(hop._idle))
    hop.close()
    await until(lambda: server.open == 0)
