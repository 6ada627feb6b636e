"""Instances that fail: what is tried elsewhere, what is held against whom, and how they come back."""

import asyncio
import contextlib
import time
from collections import Counter

import pytest

from proxy.ejection import NEW_HERE_S
from tests.hop.scripted import Asked, Peer, until
from tests.proxy.living import asked_for_work, code_of, lives
from tests.proxy.test_relay import ANSWER, DONE, EVENT, STREAM_BODY, plain, refuses, resets

# -- an instance that fails


FAST = {
    "500": refuses("500 Internal Server Error"),
    "503": refuses("503 Service Unavailable"),
    "loading": refuses("503 Service Unavailable", b'{"error":{"message":"Loading model","code":503}}'),
    "refused in stream": refuses("200 OK"),
    "reset": resets,
}


@pytest.mark.parametrize("fails", FAST.values(), ids=FAST.keys())
async def test_an_instance_that_fails_instantly_draws_a_few_of_sixty(fleet, fails):
    """It looks idle; the other one answers all."""
    await fleet.worker("a", fails, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(60):
        assert await (await fleet.ask()).answer() == (200, ANSWER)
    assert 1 <= asked_for_work(fleet.workers["a"]) <= 5
    assert asked_for_work(fleet.workers["b"]) == 60


def breaks(*last: bytes):
    """A worker whose every stream ends with these after its first event; nothing: the connection is reset."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.drain()
        if last:
            for piece in (*last, b""):
                peer.chunk(piece)
        else:
            peer.reset()

    return lives(respond)


ENGINE_DEAD = b'data: {"error":{"message":"dead","code":500}}\n\n'


LASTS = {
    "error event": [ENGINE_DEAD, DONE],
    "reset": [],
    "nothing": [b": bye\n\n"],
    "nonsense": [b'data: {"id\xff\n\n'],
}


@pytest.mark.parametrize("last", LASTS.values(), ids=LASTS.keys())
async def test_an_instance_that_breaks_streams_after_their_first_event_draws_a_few_of_sixty(fleet, last):
    """Its first events do not vouch for it."""
    await fleet.worker("a", breaks(*last), inflight=0)
    await fleet.worker("b", lambda peer, _: peer.start_stream(EVENT, DONE, b""), inflight=5)
    await fleet.start()
    for _ in range(60):
        caller = await fleet.ask(STREAM_BODY)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await caller.answer()
    assert 1 <= asked_for_work(fleet.workers["a"]) <= 5
    assert asked_for_work(fleet.workers["b"]) >= 55


@pytest.mark.parametrize("done", [[DONE], []], ids=["with [DONE]", "without"])
async def test_an_error_that_blames_the_request_is_not_held_against_the_instance(fleet, done):
    """A client's own fault, said inside its stream, ejects nobody; some engines end there, others say [DONE]."""
    blame = ENGINE_DEAD.replace(b"500", b"400")
    await fleet.worker("a", breaks(blame, *done), inflight=0)
    await fleet.start()
    for _ in range(3):
        assert (await (await fleet.ask(STREAM_BODY)).answer())[1].endswith(b"".join([blame, *done]))
    assert not fleet.replica.selection.ejections.is_out("a", time.monotonic())


async def test_no_request_is_lost_while_one_of_many_lives(fleet):
    """Seven die in the same moment, each in its own way."""
    for number, fails in enumerate([*FAST.values(), resets, refuses("502 Bad Gateway")]):
        await fleet.worker(f"dead-{number}", fails, inflight=0)
    await fleet.worker("z", plain(), inflight=50)
    await fleet.start()
    caller = await fleet.ask()
    assert await caller.answer() == (200, ANSWER)
    assert caller.headers["x-forebay-instance"] == "z"
    assert all(asked_for_work(worker) == 1 for worker in fleet.workers.values())


async def test_an_engines_retry_after_is_honoured(fleet):
    """It is passed over, and not taken for broken; with nobody else there it is asked all the same."""
    await fleet.worker("a", refuses("429 Too Many Requests", more="retry-after: 5\r\n"), inflight=0)
    other = await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(5):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert asked_for_work(fleet.workers["a"]) == 1
    assert not fleet.replica.selection.ejections.is_out("a", time.monotonic())
    await other.leave()
    await until(lambda: fleet.replica.selection.live_instances() == 1)
    caller = await fleet.ask()
    assert await caller.head() == 429
    assert caller.headers["retry-after"] == "5"


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
async def test_an_engine_that_names_no_time_to_wait_draws_a_few_of_sixty(fleet, status):
    """`Retry-After: 0` is none."""
    await fleet.worker("a", refuses(status, more="retry-after: 0\r\n"), inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(60):
        assert await (await fleet.ask()).answer() == (200, ANSWER)
    assert 1 <= asked_for_work(fleet.workers["a"]) <= 5


@pytest.mark.parametrize("verdict", ["full", "draining"])
async def test_a_worker_that_is_full_or_drains_is_not_held_to_have_failed(fleet, verdict):
    """Nor does it use up a try."""
    await fleet.worker(
        "a", lambda peer, _: peer.answer(b"{}", status="503 No", more=f"x-forebay-verdict: {verdict}\r\n"), inflight=0
    )
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start(tries=1)
    for _ in range(3):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert asked_for_work(fleet.workers["a"]) == 3


async def test_a_plain_answer_that_is_cut_is_a_502(fleet):
    """Where there is no elsewhere: in OpenAI's shape, and not half of it."""

    def cut(peer: Peer, _: Asked) -> None:
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n" + ANSWER)
        peer.close()

    await fleet.worker("a", cut)
    await fleet.start()
    status, body = await (await fleet.ask()).answer()
    assert (status, code_of(body)) == (502, "worker_broke_off")


async def test_a_new_instance_is_not_flooded(fleet):
    """Of many at once it gets one, then two: as many again with each success."""
    may_answer = asyncio.Event()

    async def respond(peer: Peer, _: Asked) -> None:
        await may_answer.wait()
        peer.answer(ANSWER)

    await fleet.worker("old", plain(), told={"slots": 200}, inflight=100)
    await fleet.start()
    fleet.replica.selection.ejections._met_first_s -= NEW_HERE_S
    new = await fleet.worker("new", respond, inflight=0)
    await until(lambda: fleet.replica.selection.live_instances() == 2)
    first = [await fleet.ask() for _ in range(6)]
    await until(lambda: len(fleet.lines) == 5)
    assert asked_for_work(new) == 1
    may_answer.set()
    answered = Counter([(await caller.answer())[0] for caller in first])
    assert answered == {200: 6}
    may_answer.clear()
    for _ in range(6):
        await fleet.ask()
    await until(lambda: len(fleet.lines) == 10)
    await until(lambda: asked_for_work(new) == 3)
    may_answer.set()


async def test_an_instance_whose_engine_fails_is_asked_only_where_no_other_lives(fleet):
    """Its worker has found out for all replicas, and lets it back by a request of its own."""
    failing = await fleet.worker("a", plain(), inflight=0)
    other = await fleet.worker("b", plain(), inflight=5)
    await failing.publish(inflight=0, state_code=2)
    await fleet.start()
    for _ in range(4):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert asked_for_work(failing) == 0
    await other.leave()
    await until(lambda: fleet.replica.selection.live_instances() == 1)
    assert (await (await fleet.ask()).answer())[0] == 200
    assert asked_for_work(failing) == 1
