"""A worker of ours between a raw client and a scripted engine: what passes, what is marked, what is left behind."""

import asyncio

import msgspec
import pytest

from bus.hop.headers import BROKE, REFUSED, VERDICT
from bus.hop.sse import LONGEST_HELD_EVENT
from tests.hop.scripted import Asked, Peer, until
from tests.workers.answering import COMPLETED, CREATED, DELTA, DONE, EVENT, USAGE, turns

REFUSAL = b'data: {"error":{"message":"queue is full","type":"service_unavailable","param":null,"code":503}}\n\n'


def stream(*events: bytes):
    """An engine that answers with these events."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(*events, b"")

    return respond


# -- streams


async def test_the_head_of_a_stream_leaves_only_with_the_first_event(site):
    """The engine's 200 comes before it has decided; a comment is no event; the first event is a decision."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(b": keep-alive\n\n")
        await may_go_on.wait()
        peer.chunk(EVENT)
        await may_end.wait()
        peer.chunk(DONE)
        peer.chunk(b"")

    may_go_on, may_end = asyncio.Event(), asyncio.Event()
    one = await site(respond)
    caller = await one.ask()
    await one.reaches(PREFILL=1)
    await turns()
    assert not caller.has_bytes
    may_go_on.set()
    assert await caller.head() == 200
    assert VERDICT not in caller.headers
    assert await caller.piece() == b": keep-alive\n\n" + EVENT
    assert one.counts() == {"DECODE": 1}
    may_end.set()
    assert await caller.body() == DONE
    await one.comes_to_rest()
    assert one.outcomes() == {"answered": 1}


async def test_a_refusal_inside_a_stream_of_status_200_is_marked_and_its_bytes_are_unchanged(site):
    """The proxy may send the request elsewhere; the engine was not slow, so nothing is learned of its speed."""
    one = await site(stream(REFUSAL, DONE))
    caller = await one.ask()
    assert await caller.answer() == (200, REFUSAL + DONE)
    assert caller.headers[VERDICT] == REFUSED
    await one.comes_to_rest()
    assert one.outcomes() == {"declined": 1}
    assert not one.instance.predictions


async def test_an_error_after_the_first_event_passes_and_is_no_refusal(site):
    """Also with a [DONE] after it, which the engine sends and we do not."""
    error = REFUSAL.replace(b"503", b"500")
    one = await site(stream(EVENT, error, DONE))
    caller = await one.ask()
    assert await caller.answer() == (200, EVENT + error + DONE)
    assert VERDICT not in caller.headers
    await one.comes_to_rest()
    assert one.outcomes() == {"failed": 1}


@pytest.mark.parametrize("half", [b"", EVENT[:10]], ids=["between events", "inside an event"])
@pytest.mark.parametrize("is_crlf", [False, True], ids=["LF", "CRLF"])
async def test_an_engine_that_resets_in_mid_stream_becomes_an_error_event_and_no_done(site, half, is_crlf):
    """The half event that had come is left out, so that the error is an event of its own."""
    event = EVENT.replace(b"\n", b"\r\n") if is_crlf else EVENT

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(event, half) if half else peer.start_stream(event)
        await may_break.wait()
        peer.reset()

    may_break = asyncio.Event()
    one = await site(respond)
    caller = await one.ask()
    await caller.head()
    assert await caller.piece() == event
    may_break.set()
    rest = await caller.body()
    assert rest.startswith(b'data: {"error":{"message":"the engine broke off')
    assert rest.endswith(b"\n\n")
    assert b"[DONE]" not in rest
    await one.comes_to_rest()
    assert one.outcomes() == {"failed": 1}


async def test_a_break_inside_an_event_that_had_to_be_passed_on_ends_the_connection(site):
    """An event too large to be held is half out: an error event would become part of it."""
    huge = b'data: {"choices":[{"text":"' + b"x" * 400_000

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT, huge)
        await may_break.wait()
        peer.reset()

    may_break = asyncio.Event()
    one = await site(respond)
    caller = await one.ask()
    await caller.head()
    got = b""
    while len(got) <= len(EVENT):
        got += await caller.piece()
    may_break.set()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await caller.body()
    await one.comes_to_rest()


async def test_a_stream_that_falls_silent_after_its_first_event_ends_with_an_error(site):
    """The limit for the first event may be long, the one between two bytes holds afterwards."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.gone()

    one = await site(respond, first_event_timeout_s=600.0, silence_timeout_s=0.05)
    caller = await one.ask()
    status, body = await caller.answer()
    assert status == 200
    assert body.startswith(EVENT + b'data: {"error"')
    await one.comes_to_rest()


@pytest.mark.parametrize("head", [True, False], ids=["head and no event", "nothing at all"])
async def test_no_first_event_in_time_is_a_504_that_may_go_elsewhere(site, head):
    """Whether or not the engine has sent its 200."""

    async def respond(peer: Peer, _: Asked) -> None:
        if head:
            peer.start_stream(b": wait\n\n")
        await peer.gone()

    one = await site(respond, first_event_timeout_s=0.05, silence_timeout_s=0.05)
    caller = await one.ask()
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (504, BROKE)
    assert b'"code":"engine_timeout"' in body
    await one.comes_to_rest()


async def test_a_stream_without_any_event_passes_as_it_is(site):
    """An empty body, or one whose only line has no end, is the engine's own answer."""
    one = await site(stream(b"data: x"))
    assert await (await one.ask()).answer() == (200, b"data: x")


@pytest.mark.parametrize("has_begun", [False, True], ids=["before the first event", "in mid-stream"])
async def test_requests_that_fail_alike_are_said_once_a_minute_and_counted(site, caplog, has_begun):
    """An engine that breaks fails all it has: one line, and one that it fails, however many there were."""

    async def respond(peer: Peer, _: Asked) -> None:
        if has_begun:
            peer.start_stream(EVENT)
            await peer.drain()
        peer.reset()

    one = await site(respond)
    now_s = one.instance._clock()
    one.instance._clock = lambda: now_s
    with caplog.at_level("WARNING", logger="forebay.worker"):
        for _ in range(5):
            await (await one.ask()).answer()
        await one.comes_to_rest()
        now_s += 60.0
        await (await one.ask()).answer()
        await one.comes_to_rest()
    what = "broke in mid-stream" if has_begun else "failed before its first event"
    lines = [message for message in caplog.messages if what in message]
    assert [line.rpartition("(")[2] for line in lines] == ["1 such since last said)", "5 such since last said)"]
    assert "request r1" in lines[0]


# -- /v1/responses


async def test_that_a_response_was_created_is_no_first_event(site):
    """It is said before the engine has the request: it is held as a comment is, and leaves with what comes next."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(CREATED)
        await may_go_on.wait()
        peer.chunk(DELTA)
        await may_end.wait()
        peer.chunk(COMPLETED)
        peer.chunk(b"")

    may_go_on, may_end = asyncio.Event(), asyncio.Event()
    one = await site(respond)
    caller = await one.ask(path="/v1/responses")
    await until(lambda: one.posts)
    await turns()
    assert one.counts() == {"PREFILL": 1}
    assert not caller.has_bytes
    may_go_on.set()
    assert await caller.head() == 200
    assert await caller.piece() == CREATED + DELTA
    assert one.counts() == {"DECODE": 1}
    may_end.set()
    assert await caller.body() == COMPLETED
    await one.comes_to_rest()
    assert one.outcomes() == {"answered": 1}


FAILED = b'event: response.failed\ndata: {"response":{"error":{"code":"%b"}},"type":"response.failed"}\n\n'


@pytest.mark.parametrize(
    ("event", "verdict", "outcome"),
    [
        (REFUSAL, REFUSED, "declined"),
        (FAILED % b"rate_limit_exceeded", REFUSED, "declined"),
        (FAILED % b"server_error", BROKE, "failed"),
        (FAILED % b"invalid_prompt", None, "rejected"),
    ],
    ids=["error event", "failed: busy", "failed", "failed: the client's fault"],
)
async def test_a_refusal_after_a_response_was_created_is_one_before_the_first_event(site, event, verdict, outcome):
    """It may go elsewhere, and one that declines is not a failing engine."""
    one = await site(stream(CREATED, event))
    caller = await one.ask(path="/v1/responses")
    assert await caller.answer() == (200, CREATED + event)
    assert caller.headers.get(VERDICT) == verdict
    await one.comes_to_rest()
    assert one.outcomes() == {outcome: 1}
    assert not one.instance.health.is_failing
    assert not one.instance.predictions


async def test_an_engine_that_breaks_after_a_response_was_created_has_not_begun(site):
    """As vLLM ends the connection where its generator raises: 502, and elsewhere."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(CREATED)
        await peer.drain()
        peer.close()

    one = await site(respond)
    caller = await one.ask(path="/v1/responses")
    status, _ = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, BROKE)


async def test_a_begin_of_a_response_too_long_to_be_held_passes(site):
    """It repeats what was asked, tools and all, and is no flood: only the retry elsewhere is lost."""
    tools = b'"' + b"t" * (LONGEST_HELD_EVENT // 2) + b'"'
    begin = CREATED.replace(b'"in_progress"}', b'"in_progress","tools":[%b]}' % tools)
    one = await site(stream(begin, DELTA, COMPLETED))
    caller = await one.ask(path="/v1/responses")
    assert await caller.answer() == (200, begin + DELTA + COMPLETED)
    await one.comes_to_rest()
    assert one.outcomes() == {"answered": 1}


# -- the usage event


async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(site):
    """The engine's bytes pass but for that one event; what it said is learned from."""
    one = await site(stream(EVENT, EVENT, USAGE, DONE))
    body = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"h\\u00e9"}]}'
    caller = await one.ask(body, strips=True)
    assert await caller.answer() == (200, EVENT + EVENT + DONE)
    await one.comes_to_rest()
    sent = one.posts[0].body
    assert msgspec.json.decode(sent) == {**msgspec.json.decode(body), "stream_options": {"include_usage": True}}
    assert sent.endswith(body[1:])
    assert one.instance.timeline.output_tokens.samples == 1


async def test_a_client_that_spoke_of_usage_gets_what_it_asked_for(site):
    """Neither request nor answer is touched."""
    one = await site(stream(EVENT, USAGE, DONE))
    body = b'{"model":"tiny","stream":true,"stream_options":{"include_usage":true}}'
    assert await (await one.ask(body)).answer() == (200, EVENT + USAGE + DONE)
    assert one.posts[0].body == body
