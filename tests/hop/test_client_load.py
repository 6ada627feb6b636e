import asyncio

from bus.hop.answer import HELD_BYTES
from bus.hop.errors import HopFailed
from tests.hop.asking import HEAD, LIMIT, get
from tests.hop.scripted import Asked, Peer, repeat, until

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
