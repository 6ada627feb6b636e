"""Full fleets, limits of time, wishes of clients, and the end of a replica."""

import asyncio
import time

import msgspec
import pytest

from bus.hop.headers import read_ticket
from tests.hop.scripted import Asked, Peer, head_of, until
from tests.proxy.conftest import BODY, CHAT
from tests.proxy.living import asked_for_work, code_of
from tests.proxy.test_relay import DONE, EVENT, STREAM_BODY, plain, resets, waits

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
        await fleet.worker(
            name, lambda peer, _, more=more: peer.answer(b'{"error":"full"}', status="429 No", more=more)
        )
    await fleet.start()
    caller = await fleet.ask()
    assert await caller.answer() == (429, b'{"error":"full"}')
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


async def test_a_request_whose_time_is_over_is_not_sent(fleet):
    """Its body took longer than its client had."""
    worker = await fleet.worker("a", plain())
    await fleet.start()
    caller = await fleet.callers.dial(fleet.url)
    caller.say(head_of("POST", CHAT, len(BODY), {"x-forebay-timeout-ms": "1"}) + BODY[:-1])
    await until(lambda: fleet.replica.inflight)
    await asyncio.sleep(0.002)  # its time has to pass
    caller.say(BODY[-1:])
    status, body = await caller.answer()
    assert (status, code_of(body)) == (504, "deadline_exceeded")
    assert not worker.asked


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
    await until(lambda: replica._is_draining and not replica._api.is_listening)
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


async def test_a_replica_that_leaves_sends_a_plain_answer_to_its_last_byte(fleet, monkeypatch):
    """Whoever reads slowly has the drain time, as a stream has."""
    monkeypatch.setattr("proxy.app.LINGER_S", 0.0)
    monkeypatch.setattr("bus.hop.server.SHUTDOWN_S", 0.01)
    large = b'"%b"' % (b"x" * 6_000_000)
    await fleet.worker("a", lambda peer, _: peer.answer(large))
    await fleet.start(drain_s=30.0)
    replica = fleet.replica
    caller = await fleet.ask()
    assert await caller.head() == 200
    stopping = asyncio.create_task(replica.stop())
    await asyncio.wait({stopping}, timeout=0.2)
    assert not stopping.done(), "it left while an answer was half sent"
    assert await caller.body() == large
    await stopping
    fleet.replica = None
