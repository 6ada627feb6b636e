"""A replica before workers that stop, fail fast, are full, or are late: nothing lost while one lives."""

import asyncio
import time

import pytest

from tests.hop.scripted import Asked, Peer, until
from tests.proxy.living import asked_for_work, lives
from tests.proxy.test_relay import ANSWER, DONE, EVENT, STREAM_BODY, plain, waits


def asked_for_health(worker) -> int:
    """Give how often a worker was asked whether it lives."""
    return sum((asked.method, asked.target) == ("GET", "/health") for asked in worker.asked)


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


async def test_the_silence_of_an_old_worker_says_nothing_of_the_one_that_has_taken_its_place(fleet):
    """It was asked, and another was there before it could have answered: what waits with the new one stays."""
    may_answer = asyncio.Event()

    async def respond(peer: Peer, asked: Asked) -> None:
        await may_answer.wait()
        peer.answer(ANSWER)

    old = await fleet.worker("a", waits, models=("rare",))
    await fleet.worker("b", plain())
    await fleet.start(probe_timeout_ms=1500)
    await old.fall_silent()
    await until(lambda: asked_for_health(old))
    new = await fleet.worker("a", lives(respond), models=("rare",))
    [reader] = fleet.replica.selection.readers.values()
    await reader.view()
    assert (await reader.view()).readings["a"].entry.registration.worker_url == new.server.url
    caller = await fleet.ask(b'{"model":"rare"}')
    await until(lambda: asked_for_work(new) == 1)
    assert fleet.replica._prober._asked
    await until(lambda: not fleet.replica._prober._asked)
    assert not fleet.replica.selection.ejections.is_out("a", time.monotonic())
    may_answer.set()
    assert await caller.answer() == (200, ANSWER)
