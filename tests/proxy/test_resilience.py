"""A replica before workers that stop, fail fast, are full, or are late: nothing lost while one lives."""

import asyncio
import contextlib
import time
from collections import Counter

import msgspec
import pytest

from bus.hop.headers import read_ticket
from proxy.ejection import NEW_HERE_S
from tests.hop.scripted import Asked, Peer, until
from tests.proxy.test_relay import ANSWER, DONE, EVENT, STREAM_BODY, plain, refuses, resets, waits


def code_of(body: bytes) -> str:
    """Give the code of an error answer."""
    return msgspec.json.decode(body)["error"]["code"]


def asked_for_work(worker) -> int:
    """Give how many requests of clients a worker got, its health left out."""
    return sum(asked.method == "POST" for asked in worker.asked)


def asked_for_health(worker) -> int:
    """Give how often a worker was asked whether it lives."""
    return sum((asked.method, asked.target) == ("GET", "/health") for asked in worker.asked)


def lives(respond):
    """A worker that answers its health, and does its work by `respond`."""

    def answer(peer: Peer, asked: Asked):
        return peer.answer(b'{"status":"ok"}') if asked.method == "GET" else respond(peer, asked)

    return answer


# -- a worker that stops


@pytest.mark.parametrize("body", [STREAM_BODY, b'{"model":"tiny"}'], ids=["stream", "plain"])
async def test_what_waits_in_a_frozen_worker_moves(fleet, body):
    """Its record expires, it answers nothing: asked elsewhere, once, with no try used up; and it gets nothing new."""
    frozen = await fleet.worker("a", waits, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start(probe_timeout_ms=50, tries=1)
    callers = [await fleet.ask(body) for _ in range(3)]
    await until(lambda: asked_for_work(frozen) == 3)
    await frozen.fall_silent()
    for caller in callers:
        assert await caller.answer() == (200, ANSWER)
        assert caller.headers["x-forebay-instance"] == "b"
    assert (await (await fleet.ask(body)).answer())[0] == 200
    assert asked_for_work(frozen) == 3
    assert fleet.replica.selection.ejections.needs_health("a")
    assert fleet.replica._metrics.moved._value.get() == 3
    assert not len(fleet.replica._relay.waiting)


async def test_a_worker_that_only_lost_the_bus_keeps_what_it_has(fleet):
    """Its record expires, it says that it lives: its request stays, and is answered by it."""

    async def respond(peer: Peer, asked: Asked) -> None:
        await may_answer.wait()
        peer.answer(ANSWER)

    may_answer = asyncio.Event()
    cut_off = await fleet.worker("a", lives(respond), inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start(probe_timeout_ms=2000)
    caller = await fleet.ask()
    await until(lambda: asked_for_work(cut_off) == 1)
    await cut_off.fall_silent()
    await until(lambda: asked_for_health(cut_off) >= 2)
    assert len(fleet.replica._relay.waiting) == 1
    may_answer.set()
    assert await caller.answer() == (200, ANSWER)
    assert caller.headers["x-forebay-instance"] == "a"
    assert not fleet.replica.selection.ejections.is_out("a", time.monotonic())


async def test_if_all_records_expire_together_nothing_moves_and_nobody_is_asked(fleet):
    """Then it is not the workers that are at fault."""
    workers = [await fleet.worker(name, waits) for name in "ab"]
    await fleet.start(probe_timeout_ms=50)
    for _ in range(4):
        await fleet.ask()
    await until(lambda: sum(map(asked_for_work, workers)) == 4)
    await asyncio.gather(*(worker.fall_silent() for worker in workers))
    [reader] = fleet.replica.selection.readers.values()
    await until(lambda: all(p.record is None for p in reader.last_view.live(reader.last_view.read_at_s)))
    reads = reader.reads
    await until(lambda: reader.reads >= reads + 2)
    assert sum(map(asked_for_health, workers)) == 0
    assert len(fleet.replica._relay.waiting) == 4
    assert sum(map(asked_for_work, workers)) == 4


async def test_a_stream_under_way_is_not_moved(fleet):
    """After its first event there is no elsewhere."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await may_end.wait()
        peer.chunk(DONE)
        peer.chunk(b"")

    may_end = asyncio.Event()
    frozen = await fleet.worker("a", respond, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start(probe_timeout_ms=50)
    caller = await fleet.ask(STREAM_BODY)
    assert await caller.head() == 200
    frozen.server.script = lambda peer: peer.gone()  # whoever connects now hears nothing
    await frozen.fall_silent()
    await until(lambda: fleet.replica.selection.ejections.needs_health("a"))
    may_end.set()
    assert await caller.body() == EVENT + DONE


async def test_a_worker_that_comes_back_is_let_back(fleet):
    """Dead it is asked for its health only; alive again it gets requests again."""
    is_dead = True

    def respond(peer: Peer, asked: Asked):
        return peer.reset() if is_dead else lives(plain())(peer, asked)

    worker = await fleet.worker("a", respond, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(3):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert asked_for_work(worker) == 1
    await until(lambda: asked_for_health(worker) >= 1)
    is_dead = False
    await until(lambda: not fleet.replica.selection.ejections.is_out("a", time.monotonic()))
    caller = await fleet.ask()
    assert await caller.answer() == (200, ANSWER)
    assert caller.headers["x-forebay-instance"] == "a"


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


async def test_an_error_that_blames_the_request_is_not_held_against_the_instance(fleet):
    """A client's own fault, said inside its stream, ejects nobody."""
    await fleet.worker("a", breaks(ENGINE_DEAD.replace(b"500", b"400"), DONE), inflight=0)
    await fleet.start()
    for _ in range(3):
        assert (await (await fleet.ask(STREAM_BODY)).answer())[1].endswith(DONE)
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

    await fleet.worker("old", plain(), inflight=100)
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


# -- full


async def test_a_full_instance_is_passed_over_however_well_it_looks(fleet):
    """It is not even asked."""
    full = {"inflight": 1, "ready_queue_depth": 0}
    await fleet.worker("a", plain(), told={"slots": 1, "queue_limit": 0}, **full)
    await fleet.worker("b", plain(), told={"slots": 1, "queue_limit": 300}, inflight=200, ready_queue_depth=199)
    await fleet.start()
    for _ in range(4):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert [asked_for_work(worker) for worker in fleet.workers.values()] == [0, 4]


async def test_a_full_fleet_is_a_429_that_says_when_to_come_again(fleet):
    """The soonest place of all: 12 s for a fourth to have a slot are 3 s to the next end."""
    for name, slot_ms in (("a", 60_000), ("b", 12_000)):
        full = {"inflight": 4, "ready_queue_depth": 3, "next_slot_ready_in_ms": slot_ms}
        await fleet.worker(name, plain(), told={"slots": 1, "queue_limit": 3}, **full)
    await fleet.start()
    caller = await fleet.ask()
    status, body = await caller.answer()
    assert (status, code_of(body), caller.headers["retry-after"]) == (429, "all_queues_full", "3")
    assert sum(map(asked_for_work, fleet.workers.values())) == 0
    await fleet.workers["a"].publish(inflight=3, ready_queue_depth=2)
    await until(lambda: fleet.replica.selection.readers["default"].last_view.readings["a"].record.inflight == 3)
    assert (await (await fleet.ask()).answer())[0] == 200


async def test_all_workers_saying_that_they_are_full_is_a_429_with_the_soonest_time(fleet):
    """Where their records are a moment old."""
    for name, after in (("a", 9), ("b", 4), ("c", 7)):
        more = f"x-forebay-verdict: full\r\nretry-after: {after}\r\n"
        await fleet.worker(name, lambda peer, _, more=more: peer.answer(b"full", status="429 No", more=more))
    await fleet.start()
    caller = await fleet.ask()
    assert await caller.answer() == (429, b"full")
    assert caller.headers["retry-after"] == "4"


# -- how long it may take


@pytest.mark.parametrize("said_by", ["client", "configuration", "both"])
async def test_a_request_ends_with_its_time_before_its_first_event(fleet, said_by):
    """A 504 that says so; the worker sees it leave, is told its limit, and nothing is held against it."""
    worker = await fleet.worker("a", waits)
    await fleet.worker("b", waits, inflight=5)
    await fleet.start(request_timeout_s={"client": 0.0, "configuration": 0.5, "both": 0.5}[said_by])
    said = {"client": "500", "both": "60000"}.get(said_by)
    caller = await fleet.ask(**({"x_forebay_timeout_ms": said} if said else {}))
    status, body = await caller.answer()
    assert (status, code_of(body)) == (504, "deadline_exceeded")
    await until(lambda: worker.server.open == 0)
    ticket = read_ticket(worker.asked[0].headers["x-forebay-reservation"])
    assert 1 <= ticket.left_ms <= 500
    assert not fleet.replica.selection.ejections.is_out("a", time.monotonic())
    assert not fleet.workers["b"].asked


async def test_a_stream_that_outlives_its_time_ends_with_an_error_event(fleet):
    """And no [DONE]."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.gone()

    await fleet.worker("a", respond)
    await fleet.start()
    status, body = await (await fleet.ask(STREAM_BODY, x_forebay_timeout_ms="1000")).answer()
    assert (status, body[: len(EVENT)]) == (200, EVENT)
    assert b'"code":"deadline_exceeded"' in body[len(EVENT) :]
    assert DONE not in body


async def test_a_request_whose_time_is_over_is_not_tried_again(fleet):
    """Though others live."""

    async def respond(peer: Peer, _: Asked) -> None:
        await asyncio.sleep(0.4)
        peer.reset()

    await fleet.worker("a", respond, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    status, body = await (await fleet.ask(x_forebay_timeout_ms="300")).answer()
    assert (status, code_of(body)) == (504, "deadline_exceeded")
    assert not fleet.workers["b"].asked


async def test_what_a_worker_did_not_start_in_time_is_the_answer(fleet):
    """Its 504 carries no verdict: nobody else is asked."""
    late = b'{"error":{"code":"deadline_exceeded"}}'
    await fleet.worker("a", plain(late, status="504 Gateway Timeout"), inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    assert await (await fleet.ask(x_forebay_timeout_ms="60000")).answer() == (504, late)
    await until(lambda: fleet.lines)
    assert (fleet.lines[0].outcome, fleet.lines[0].tries) == ("failed", 1)


async def test_retries_end_with_their_window(fleet):
    """Whatever time the client has."""
    await fleet.worker("a", resets, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start(retry_window_s=0)
    assert (await (await fleet.ask()).answer())[0] == 502


async def test_a_silent_stream_says_that_it_was_silence(fleet):
    """Other than a connection that broke."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.gone()

    await fleet.worker("a", respond)
    await fleet.start(silence_timeout_s=0.05)
    _, body = await (await fleet.ask(STREAM_BODY)).answer()
    assert b'"code":"worker_silent"' in body


# -- what the client wishes


async def test_a_clients_priority_reaches_the_worker(fleet):
    """In the ticket; the header itself ends at the gateway."""
    worker = await fleet.worker("a", plain())
    await fleet.start()
    await (await fleet.ask(x_forebay_priority="low")).answer()
    assert read_ticket(worker.asked[0].headers["x-forebay-reservation"]).priority == "low"
    assert "x-forebay-priority" not in worker.asked[0].headers


@pytest.mark.parametrize("header", [{"x_forebay_priority": "urgent"}, {"x_forebay_timeout_ms": "soon"}])
async def test_a_wish_that_is_none_is_a_400(fleet, header):
    """In OpenAI's shape, with the header's name; nobody is asked."""
    worker = await fleet.worker("a", plain())
    await fleet.start()
    status, body = await (await fleet.ask(**header)).answer()
    assert status == 400
    assert msgspec.json.decode(body)["error"]["param"] == next(iter(header)).replace("_", "-")
    assert not worker.asked


# -- its own end


async def test_a_replica_that_leaves_ends_its_connections_and_loses_no_request(fleet):
    """What runs is finished, the next answer on a connection says that it is the last, who is idle is let go."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await may_end.wait()
        peer.chunk(DONE)
        peer.chunk(b"")

    may_end = asyncio.Event()
    await fleet.worker("a", respond)
    await fleet.start(drain_s=30.0)
    replica, url = fleet.replica, fleet.url
    running = await fleet.ask(STREAM_BODY)
    await running.head()
    busy, idle = await fleet.callers.dial(url), await fleet.callers.dial(url)
    for caller in (busy, idle):
        caller.say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await caller.answer()
        assert "connection" not in caller.headers
    stopping = asyncio.create_task(replica.stop())
    await until(lambda: replica._is_draining and not replica._api._runner.sites)
    with pytest.raises(ConnectionRefusedError):
        await fleet.callers.dial(url)
    busy.say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await busy.answer())[0] == 200
    assert busy.headers["connection"] == "close"
    await busy.ended()
    await idle.ended()
    assert not stopping.done(), "it did not wait for what runs"
    may_end.set()
    assert await running.body() == EVENT + DONE
    await stopping
    fleet.replica = None


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
