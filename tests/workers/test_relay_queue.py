"""A request through the queue of a worker: what the engine is told, refusals, stages and turns."""

import asyncio

import msgspec

from bus.hop.headers import DRAINING, FULL, REFUSED, VERDICT
from tests.hop.scripted import Asked, Peer, head_of, until
from tests.workers.answering import ANSWER, DONE, EVENT, plain
from tests.workers.conftest import CHAT


async def waits(peer: Peer, _: Asked) -> None:
    """An engine that takes a request and says nothing."""
    await peer.gone()


# -- what the engine is told


async def test_the_engine_gets_the_request_as_it_is(site):
    """Path, query, body and harmless headers; the request id; neither the client's key nor our own headers."""
    one = await site(plain(), engine_key_file="")
    one.instance.engine_headers.append((b"authorization", b"Bearer engine-key"))
    body = b'  {"model":"tiny", "x":"\xc3\xa9"}'
    await (
        await one.ask(
            body,
            path="/v1/completions?trace=1",
            x_request_id="abc",
            authorization="Bearer client-key",
            cookie="a=b",
            x_custom="1",
            connection="x-custom",
            user_agent="me",
        )
    ).answer()
    asked = one.posts[0]
    assert (asked.target, asked.body) == ("/v1/completions?trace=1", body)
    assert asked.headers["x-request-id"] == "abc"
    assert asked.headers["user-agent"] == "me"
    assert asked.headers["authorization"] == "Bearer engine-key"
    assert not {"cookie", "x-custom", "x-forebay-reservation", "connection"} & asked.headers.keys()


async def test_no_two_requests_on_the_engine_have_one_id(site):
    """A backend gives the id of its own request to all that it asks meanwhile; each keeps its bytes, ASCII or not."""
    may_end = asyncio.Event()

    async def respond(peer: Peer, _: Asked) -> None:
        await may_end.wait()
        peer.answer(ANSWER)

    one = await site(respond, slots=8)
    callers = [await one.ask(is_stream=False, x_request_id=name) for name in ("a", "a", "a", "\u00e9", "\u00e9")]
    await until(lambda: len(one.posts) == 5)
    ids = [asked.headers["x-request-id"].encode("latin-1").decode() for asked in one.posts]
    assert len(set(ids)) == 5
    assert {"a", "\u00e9"} <= set(ids)
    may_end.set()
    for caller in callers:
        assert (await caller.answer())[0] == 200
    may_end.clear()
    await one.comes_to_rest()
    caller = await one.ask(is_stream=False, x_request_id="a")
    await until(lambda: len(one.posts) == 6)
    assert one.posts[5].headers["x-request-id"] == "a"  # free again
    may_end.set()
    assert (await caller.answer())[0] == 200


async def test_other_methods_pass_without_the_queue(site):
    """Nothing is accepted, whatever the engine says."""
    one = await site(plain())
    caller = await one._callers.ask(one.url, "/v1/files/1", method="GET")
    assert await caller.answer() == (404, b'{"detail":"Not Found"}')
    assert one.outcomes() == {}


# -- refusals of our own


async def test_an_engine_that_cannot_be_reached_is_a_502_that_may_go_elsewhere(site):
    """The connection is refused: nothing was sent."""
    one = await site(plain(), engine_url="http://127.0.0.1:9")
    caller = await one.ask()
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, REFUSED)
    assert b'"code":"engine_unreachable"' in body
    caller = await one._callers.ask(one.url, "/v1/files", method="GET")
    assert await caller.head() == 502
    await one.comes_to_rest()


async def test_a_full_queue_is_a_429_with_retry_after(site):
    """One slot, one may wait: the third is refused at once, and says when to come again."""
    one = await site(waits, slots=1, queue_limit=1)
    for index in range(2):
        await one.ask()
        await one.reaches(**({"PREFILL": 1} if index == 0 else {"PREFILL": 1, "READY_QUEUE": 1}))
    caller = await one.ask()
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (429, FULL)
    assert int(caller.headers["retry-after"]) >= 1
    assert b'"code":"queue_full"' in body
    assert one.outcomes() == {"refused": 1}
    one._callers.close()
    await one.comes_to_rest()


async def test_a_queue_is_full_too_when_one_request_has_all_slots(site):
    """Nobody may wait: one request of four answers leaves no room."""
    one = await site(waits, slots=4, queue_limit=0)
    await one.ask(terms=";sequences=4")
    await one.reaches(PREFILL=1)
    status, body = await (await one.ask()).answer()
    assert (status, b'"code":"queue_full"' in body) == (429, True)
    one._callers.close()
    await one.comes_to_rest()


async def test_a_draining_instance_refuses_and_finishes_what_runs(site):
    """A new request may go elsewhere, the running one ends well."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await may_end.wait()
        peer.chunk(DONE)
        peer.chunk(b"")

    may_end = asyncio.Event()
    one = await site(respond)
    running = await one.ask()
    await running.head()
    one.instance.drain()
    caller = await one.ask()
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (503, DRAINING)
    assert b'"code":"instance_draining"' in body
    may_end.set()
    assert await running.body() == EVENT + DONE
    await one.comes_to_rest()


async def test_stopping_does_not_wait_for_a_request_that_hangs(site):
    """The time to drain is the whole of it."""
    one = await site(waits, drain_s=0.05)
    await one.ask()
    await one.reaches(PREFILL=1)
    async with asyncio.timeout(3.0):
        await one.worker.stop()


# -- stages


async def test_every_stage_shows_in_its_count(site):
    """A body on its way is being prepared; one that is whole waits for the slot; one on the engine is in prefill."""
    one = await site(waits, slots=1)
    first = await one.ask()
    await one.reaches(PREFILL=1)
    second = await one.ask()
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    third = await one.dial()
    third.say(head_of("POST", CHAT, 100) + b"{half")
    await one.reaches(PREFILL=1, READY_QUEUE=1, PREPARING=1)
    record = one.instance._make_record(1, 1)
    assert (record.pending_prefill_count, record.ready_queue_depth, record.active_prepare, record.inflight) == (
        1,
        1,
        1,
        3,
    )
    third.leave()
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    second.leave()
    await one.reaches(PREFILL=1)
    first.leave()
    await one.comes_to_rest()
    assert one.outcomes() == {"cancelled": 3}


async def test_bodies_beyond_the_preparing_ones_wait_in_their_queue(site):
    """One is prepared at a time: the second waits, also if it is whole."""
    one = await site(plain(), prepare_concurrency=1)
    slow = await one.dial()
    slow.say(head_of("POST", CHAT, 2))
    await one.reaches(PREPARING=1)
    fast = await one.ask()
    await one.reaches(PREPARING=1, PREPARE_QUEUE=1)
    slow.say(b"{}")
    assert (await slow.answer())[0] == (await fast.answer())[0] == 200
    await one.comes_to_rest()


async def test_one_id_may_be_used_by_many_requests_at_once(site):
    """Clients repeat themselves; each request counts, in whatever order they come and go."""
    one = await site(waits, slots=8)
    one.bus.fall_silent()  # so that nothing that is published tells them apart
    other = await one.ask(x_request_id="other")
    await one.reaches(PREFILL=1)
    for count in (2, 3):
        await one.ask(x_request_id="same")
        await one.reaches(PREFILL=count)
    other.leave()
    await one.reaches(PREFILL=2)
    for count in (3, 4):
        await one.ask(x_request_id="same")
        await one.reaches(PREFILL=count)
    one.bus.speak_again()
    one._callers.close()
    await one.comes_to_rest()
    assert one.outcomes() == {"cancelled": 5}


async def test_a_request_for_several_answers_takes_as_many_slots(site):
    """Three of four, or all four for more: the next one waits; whoever leaves gives all back."""
    one = await site(waits, slots=4)
    for sequences in (3, 64):
        several = await one.ask(terms=f";sequences={sequences}")
        await one.reaches(PREFILL=1)
        assert one.instance.slot_gate.held == min(sequences, 4)
        behind = await one.ask(terms=";sequences=2")
        await one.reaches(PREFILL=1, READY_QUEUE=1)
        gives_up = await one.ask(terms=";sequences=4")
        await one.reaches(PREFILL=1, READY_QUEUE=2)
        gives_up.leave()
        await one.reaches(PREFILL=1, READY_QUEUE=1)
        several.leave()
        await one.reaches(PREFILL=1)
        await until(lambda: one.instance.slot_gate.held == 2)
        behind.leave()
        await one.comes_to_rest()


# -- how long it may take, and whose turn it is


async def test_a_request_that_waited_longer_than_its_client_is_not_started(site):
    """A 504 that no other instance is to be asked for; the engine never hears of it, and the queue is as before."""
    one = await site(waits, slots=1)
    await one.ask()
    await one.reaches(PREFILL=1)
    late = await one.ask(terms=";left=40")
    status, body = await late.answer()
    assert status == 504
    assert VERDICT not in late.headers
    assert b'"code":"deadline_exceeded"' in body
    assert len(one.posts) == 1
    assert one.counts() == {"PREFILL": 1}
    assert one.outcomes() == {"late": 1}


async def test_a_request_in_time_is_answered_whatever_its_limit(site):
    """The limit is one on waiting for a slot: the worker does not cut what runs."""

    async def respond(peer: Peer, _: Asked) -> None:
        await may_answer.wait()
        peer.start_stream(EVENT, DONE, b"")

    may_answer = asyncio.Event()
    one = await site(respond, slots=1)
    caller = await one.ask(terms=";left=500")
    await one.reaches(PREFILL=1)
    await asyncio.sleep(0.6)
    may_answer.set()
    assert (await caller.answer())[0] == 200


async def test_a_queue_with_a_time_limit_sends_what_waits_too_long_elsewhere(site):
    """Other than the client's limit, that of the queue says nothing of another instance."""
    one = await site(waits, slots=1, queue_timeout_s=0.04)
    await one.ask()
    await one.reaches(PREFILL=1)
    caller = await one.ask(terms=";left=60000")
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (503, FULL)
    assert b'"code":"queue_timeout"' in body


async def test_of_those_that_wait_the_high_go_first_and_the_low_go_too(site):
    """One slot, nine wait in the order low, normal, high; the order in which the engine sees them."""

    async def respond(peer: Peer, asked: Asked) -> None:
        seen.append(asked.headers["x-request-id"][0])
        if len(seen) == 1:
            await may_go_on.wait()
        peer.start_stream(EVENT, DONE, b"")

    seen: list[str] = []
    may_go_on = asyncio.Event()
    one = await site(respond, slots=1)
    callers = [await one.ask(x_request_id="first")]
    await one.reaches(PREFILL=1)
    for priority in ("low", "normal", "high"):
        for number in range(3):
            callers.append(await one.ask(terms=f";priority={priority}", x_request_id=f"{priority}{number}"))
            await one.reaches(PREFILL=1, READY_QUEUE=len(callers) - 1)
    may_go_on.set()
    for caller in callers:
        assert (await caller.answer())[0] == 200
    assert "".join(seen) == "f" + "hnlhhnn" + "ll"


async def test_a_workers_health_is_its_own(site):
    """It answers though its engine hangs; what an engine has under /v1/ still passes."""
    one = await site(waits)
    caller = await one._callers.ask(one.url, "/health", method="GET")
    status, body = await caller.answer()
    assert (status, msgspec.json.decode(body)) == (200, {"status": "ok", "instance": "a", "state": "ready"})
    assert "/health" not in [asked.target for asked in one.engine.asked]
