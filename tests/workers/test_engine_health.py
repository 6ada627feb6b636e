"""An engine that fails at its work: its worker says so to all, and lets it back by a request of its own."""

import asyncio

import pytest

from bus.keys import pressure_key
from bus.record import decode_record
from tests.bus.worker import until
from tests.hop.scripted import Asked, Peer
from tests.workers.answering import EVENT, SHUTS_DOWN
from workers import engine_health
from workers.engine_health import FAILURES

WHOLE = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


def stream(peer: Peer, body: bytes) -> None:
    """Answer with an event stream."""
    peer.answer(body, kind="text/event-stream")


async def is_now(one, state: str) -> bool:
    """Whether the record on the bus tells this state."""
    raw = await one.bus.client.hget(pressure_key("default", "a"), "record")
    return decode_record(raw).record.state == state


def fail(peer: Peer) -> None:
    """Fail as an engine does whose work is at fault."""
    peer.answer(b"{}", status="500 Internal Server Error")


async def is_failing(one, *, asks: int = FAILURES) -> bool:
    """Send some requests, one after the other; tell whether the engine is a failing one then."""
    for _ in range(asks):
        await (await one.ask()).answer()
    await until(lambda: not len(one.instance.timeline))
    return one.instance.health.is_failing


@pytest.mark.parametrize(
    "broken",
    [
        lambda peer: peer.reset(),
        fail,
        lambda peer: stream(peer, b'data: {"error":{"code":500}}\n\ndata: [DONE]\n\n'),
        lambda peer: stream(peer, b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'),
    ],
    ids=["reset", "500", "error event", "no end"],
)
async def test_an_engine_that_breaks_is_failing_until_it_answers_its_worker(site, broken):
    """A failure, and one more of the worker's own request: the record says so, and no client is needed to undo it."""
    is_broken = True

    def respond(peer: Peer, asked: Asked) -> None:
        broken(peer) if is_broken else stream(peer, WHOLE)

    one = await site(respond)
    await (await one.ask()).answer()
    await until(lambda: is_now(one, "failing"))
    is_broken = False
    await until(lambda: is_now(one, "ready"))
    assert one.posts[-1].target == "/v1/completions"
    assert b'"max_tokens":8' in one.posts[-1].body
    assert b'"model":"tiny"' in one.posts[-1].body


async def test_that_an_engine_fails_and_that_it_works_again_are_one_line_each(site, caplog):
    """However many requests failed meanwhile."""
    caplog.set_level("INFO", logger="forebay.worker")
    answers = iter([fail] * (FAILURES + 3))
    one = await site(lambda peer, _: next(answers, lambda each: stream(each, WHOLE))(peer))
    for _ in range(FAILURES + 3):
        await (await one.ask()).answer()
    await until(lambda: not one.instance.health.is_failing)
    said = [message for message in caplog.messages if "its engine" in message]
    assert ["fails" in said[0], "answers again" in said[1], len(said)] == [True, True, 2]


async def test_one_failure_alone_may_be_its_requests_fault(site):
    """The engine is asked, and answers: nothing is said of it."""
    answers = iter([fail, lambda peer: stream(peer, WHOLE)])
    one = await site(lambda peer, _: next(answers)(peer))
    changes = []
    one.instance.health._on_change = lambda: changes.append(None)
    await (await one.ask()).answer()
    await until(lambda: len(one.posts) == FAILURES and not one.instance.health._failures)
    assert not changes


async def test_a_stream_that_breaks_after_it_began_is_no_requests_fault(site):
    """One is enough: others may be answered meanwhile, and clients would find out one by one."""

    async def respond(peer: Peer, asked: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.drain()
        peer.reset()

    one = await site(respond)
    caller = await one.ask()
    assert b'"code":"engine_broke_off"' in (await caller.answer())[1]
    await until(lambda: one.instance.health.is_failing)


@pytest.mark.parametrize("works", [True, False], ids=["works", "hangs"])
async def test_a_stream_that_falls_silent_makes_its_worker_ask_and_no_more(site, monkeypatch, works):
    """It may hold a long tool call, of which nothing is told before its end: the engine's own answer decides."""
    monkeypatch.setattr(engine_health, "WORK_S", 0.1)

    async def respond(peer: Peer, asked: Asked) -> None:
        if asked.target == "/v1/completions" and works:
            return stream(peer, WHOLE)
        peer.start_stream(EVENT)
        await peer.gone()
        return None

    one = await site(respond, silence_timeout_s=0.05)
    changes = []
    one.instance.health._on_change = lambda: changes.append(one.instance.health.is_failing)
    assert b'"code":"engine_silent"' in (await (await one.ask()).answer())[1]
    await until(lambda: one.outcomes() == {"silent": 1})
    assert not one.instance.health.is_failing
    await until(lambda: len(one.posts) >= 2 and (bool(changes) or not one.instance.health._failures))
    assert changes == ([] if works else [True])


async def test_a_request_that_is_answered_lets_the_engine_back_too(site):
    """Whatever tells that it works."""
    answers = iter([fail, fail, lambda peer: stream(peer, WHOLE)])
    one = await site(lambda peer, _: next(answers)(peer))
    assert await is_failing(one)
    await (await one.ask()).answer()
    await until(lambda: not one.instance.health.is_failing)
    assert len(one.posts) == FAILURES + 1


async def test_an_answer_to_what_was_sent_before_the_failures_undoes_nothing(site):
    """A stream that runs on says nothing of what an engine does with new requests."""
    go_on = asyncio.Event()

    async def respond(peer: Peer, asked: Asked) -> None:
        if b"long" not in asked.body:
            return fail(peer)
        peer.start_stream(EVENT)
        await go_on.wait()
        peer.chunk(WHOLE)
        peer.chunk(b"")
        return None

    one = await site(respond)
    before = await one.ask(b'{"model":"tiny","user":"long"}')
    await until(lambda: len(one.posts) == 1)
    for _ in range(FAILURES):
        await (await one.ask()).answer()
    go_on.set()
    _, body = await before.answer()
    assert body.endswith(b"[DONE]\n\n")
    await one.comes_to_rest()
    assert one.instance.health.is_failing


@pytest.mark.parametrize("status", ["503 Busy", "429 Later", "501 Not Implemented", "401 No", "400 No", "404 No"])
async def test_who_declines_does_not_fail(site, status):
    """Busy, without that path, with another key: an engine that says so works."""
    one = await site(lambda peer, _: peer.answer(b"{}", status=status))
    assert not await is_failing(one)


@pytest.mark.parametrize("code", [400, 404, 503])
async def test_an_error_as_the_first_event_says_what_the_status_would(site, code):
    """A client's mistake, or an engine that declines: vLLM wraps them in a stream that began with 200."""
    one = await site(lambda peer, _: stream(peer, b'data: {"error":{"code":%d}}\n\n' % code))
    assert not await is_failing(one)


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "429 Too Many", "501 Not Implemented"])
async def test_any_answer_to_the_workers_own_request_lets_the_engine_back(site, status):
    """One without completions, or that wants another key, works if it says so."""

    def respond(peer: Peer, asked: Asked) -> None:
        if asked.target == "/v1/completions":
            peer.answer(b'{"detail":"No"}', status=status)
        else:
            peer.reset()

    one = await site(respond)
    assert await is_failing(one)
    await until(lambda: not one.instance.health.is_failing)


async def test_an_own_request_answered_too_late_to_know_of_the_last_failure_undoes_nothing(site):
    """One rule for all requests: what was sent before a failure says nothing of the time after it."""
    go_on = asyncio.Event()

    async def respond(peer: Peer, asked: Asked) -> None:
        if asked.target != "/v1/completions":
            return fail(peer)
        peer.start_stream()
        await go_on.wait()
        peer.chunk(WHOLE)
        peer.chunk(b"")
        return None

    one = await site(respond)
    await (await one.ask()).answer()
    await until(lambda: len(one.posts) == 2)
    assert await is_failing(one, asks=1)
    go_on.set()
    await until(lambda: one.instance.slot_gate.held == 0)
    assert one.instance.health.is_failing


def shut_down(peer: Peer) -> None:
    """Decline as vLLM does while it ends what runs."""
    peer.answer(SHUTS_DOWN, status="500 Internal Server Error")


@pytest.mark.parametrize(
    "answer",
    [fail, lambda peer: peer.answer(b"{}", status="503 Busy"), shut_down],
    ids=["500", "503", "500 that shuts down"],
)
async def test_only_a_failure_of_its_own_request_confirms_one_of_a_client(site, answer):
    """An engine that is busy, or starting, says so: nothing is known of it yet, and it is asked again."""
    answers = iter([fail, answer, answer])
    one = await site(lambda peer, _: next(answers, lambda each: stream(each, WHOLE))(peer))
    await (await one.ask()).answer()
    await until(lambda: len(one.posts) == 2 and one.instance.slot_gate.held == 0)
    assert one.instance.health.is_failing is (answer is fail)
    await until(lambda: not one.instance.health._failures)


async def test_its_own_request_takes_a_place_like_any_other(site):
    """It must not queue in an engine whose places are all taken: it would come late, and that would be no failure."""
    release = asyncio.Event()

    async def respond(peer: Peer, asked: Asked) -> None:
        if b"fail" in asked.body:
            return fail(peer)
        if asked.target != "/v1/completions":
            await release.wait()
        stream(peer, WHOLE)
        return None

    one = await site(respond, slots=2)
    await (await one.ask(b'{"model":"tiny","user":"fail"}')).answer()
    long = [await one.ask() for _ in range(2)]
    await until(lambda: one.instance.slot_gate.waiting == 1)
    assert len(one.posts) == 3
    release.set()
    for caller in long:
        await caller.answer()
    await until(lambda: not one.instance.health._failures)


async def test_a_request_of_the_workers_own_has_an_end(site, monkeypatch):
    """An engine that sends a comment now and then keeps no probe for ever: it is asked again, and still fails."""
    monkeypatch.setattr(engine_health, "WORK_S", 0.1)

    async def respond(peer: Peer, asked: Asked) -> None:
        if asked.target != "/v1/completions":
            return fail(peer)
        peer.start_stream()
        gone = asyncio.ensure_future(peer.gone())
        while not gone.done():
            peer.chunk(b": still here\n\n")
            await asyncio.sleep(0.01)
        return None

    one = await site(respond)
    assert await is_failing(one)
    await until(lambda: len(one.posts) >= FAILURES + 2)
    assert one.instance.health.is_failing
