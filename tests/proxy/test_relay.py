"""A replica of ours between a raw client and scripted workers: where requests go, what passes, what is left."""

import asyncio

import msgspec
import pytest

from bus.hop.headers import read_ticket
from proxy.relay import HELD_ANSWER_BYTES
from tests.hop.scripted import Asked, Peer, until
from tests.proxy.conftest import BODY
from tests.proxy.living import lives

STREAM_BODY = b'{"model":"tiny","stream":true,"messages":[]}'
EVENT = b'data: {"choices":[{"index":0}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":1}}'
REFUSED = "x-forebay-verdict: refused\r\n"
BROKE = "x-forebay-verdict: broke\r\n"


def plain(body: bytes = ANSWER, **more: str):
    """A worker that answers in one piece."""
    return lambda peer, _: peer.answer(body, **more)


def refuses(status: str = "503 Service Unavailable", body: bytes = b'{"error":{"message":"full"}}', more: str = ""):
    """A worker whose engine refuses."""
    return lambda peer, _: peer.answer(body, status=status, more=REFUSED + more)


async def waits(peer: Peer, _: Asked) -> None:
    """A worker that never answers."""
    await peer.gone()


def resets(peer: Peer, _: Asked) -> None:
    """A worker that dies with the request."""
    peer.reset()


# -- what passes


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "422 Unprocessable Entity"])
async def test_an_answer_passes_with_its_status_headers_and_bytes(fleet, status):
    """With the id of the request and the instance that answered; nothing of ours that was between us and the worker."""
    await fleet.worker("a", plain(status=status, more="x-engine: 1\r\nx-request-id: other\r\nx-forebay-x: 1\r\n"))
    await fleet.start()
    caller = await fleet.ask(x_request_id="abc")
    assert await caller.answer() == (int(status[:3]), ANSWER)
    assert caller.headers["x-request-id"] == "abc"
    assert caller.headers["x-forebay-instance"] == "a"
    assert caller.headers["x-engine"] == "1"
    assert "x-forebay-x" not in caller.headers


async def test_a_stream_passes_byte_for_byte_as_it_comes(fleet):
    """Each event when it is there; no [DONE] is added."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await may_go_on.wait()
        peer.chunk(b": comment\r\n\r\n")
        peer.chunk(b"")

    may_go_on = asyncio.Event()
    await fleet.worker("a", respond)
    await fleet.start()
    caller = await fleet.ask(STREAM_BODY)
    assert await caller.head() == 200
    assert caller.headers["content-type"] == "text/event-stream"
    assert await caller.piece() == EVENT
    may_go_on.set()
    assert await caller.body() == b": comment\r\n\r\n"


async def test_a_worker_gets_the_request_with_its_ticket(fleet):
    """Body and query untouched; neither credentials nor what a client says in our name."""
    await fleet.worker("a", plain())
    await fleet.start()
    caller = await fleet.ask(
        STREAM_BODY,
        path="/v1/chat/completions?trace=1",
        authorization="Bearer secret",
        cookie="a=b",
        x_forebay_reservation="evil;tokens=1000000",
        x_forebay_secret="evil",  # noqa: S106 - it is what must not pass
        x_custom="1",
    )
    await caller.answer()
    asked = fleet.workers["a"].asked[0]
    assert (asked.target, asked.body) == ("/v1/chat/completions?trace=1", STREAM_BODY)
    assert asked.headers["x-custom"] == "1"
    assert not {"authorization", "cookie", "x-forebay-secret"} & asked.headers.keys()
    assert [name.lower() for name, _ in asked.pairs].count("x-forebay-reservation") == 1
    ticket = read_ticket(asked.headers["x-forebay-reservation"])
    assert ticket is not None
    assert "evil" not in ticket.reservation
    assert (ticket.is_stream, ticket.strips_usage) == (True, True)
    assert asked.headers["x-request-id"] == caller.headers["x-request-id"]


@pytest.mark.parametrize("given", ["", "has blank", "x" * 129, "a;b", "\xe9"])
async def test_a_request_id_that_cannot_be_passed_on_is_replaced(fleet, given):
    """And every request has one, also one that is refused here."""
    await fleet.worker("a", plain())
    await fleet.start()
    caller = await fleet.ask(x_request_id=given)
    await caller.answer()
    made = caller.headers["x-request-id"]
    assert len(made) == 32
    assert made == fleet.workers["a"].asked[0].headers["x-request-id"]
    other = await fleet.ask(b"{", x_request_id=given)
    assert await other.head() == 400
    assert len(other.headers["x-request-id"]) == 32


@pytest.mark.parametrize("has_length", [True, False], ids=["with length", "chunked"])
async def test_a_large_answer_passes_whole(fleet, has_length):
    """Larger than what is held."""
    large = bytes(range(256)) * (HELD_ANSWER_BYTES // 256 + 100)

    async def respond(peer: Peer, _: Asked) -> None:
        if has_length:
            peer.answer(large, kind="audio/wav")
        else:
            peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n")
            peer.chunk(large)
            peer.chunk(b"")
        await peer.drain()

    await fleet.worker("a", respond)
    await fleet.start()
    status, body = await (await fleet.ask()).answer()
    assert (status, len(body), body == large) == (200, len(large), True)
    assert len(fleet.workers["a"].asked) == 1
    await until(lambda: fleet.lines)
    assert fleet.lines[0].outcome == "answered"
    assert fleet.replica.selection.ejections.is_empty, "it has no [DONE], and needs none"


# -- where it goes


async def test_the_less_loaded_instance_is_chosen_and_the_pages_say_why(fleet):
    """The numbers of both pages are those of the choice."""
    await fleet.worker("a", plain(), inflight=5, predicted_total_backlog_ms=2500)
    await fleet.worker("b", plain(), inflight=2, predicted_total_backlog_ms=500)
    await fleet.worker("c", plain(), inflight=9)
    await fleet.start(strategy="least_load")
    caller = await fleet.ask(x_request_id="why")
    await caller.answer()
    assert caller.headers["x-forebay-instance"] == "b"

    [decision] = (await fleet.admin("/debug/selections"))["selections"]
    assert (decision["request_id"], decision["chosen"], decision["strategy"], decision["model"]) == (
        "why",
        "b",
        "least_load",
        "tiny",
    )
    assert decision["margin"] == pytest.approx(decision["runner_up_score"] - decision["score"])
    choice = fleet.replica.selection.decisions[0].choice
    assert decision["score"] == choice.score(choice.index)
    shown = {candidate["id"]: candidate for candidate in decision["candidates"]}
    for index, instance in enumerate(choice.evaluation.instances):
        terms = shown[instance]["terms"]
        assert shown[instance]["total"] == choice.evaluation.totals[index]
        assert [term["contribution"] for term in terms.values()] == choice.evaluation.contributions(index)
    assert shown["c"]["imputed"].keys() == {"predicted_total_backlog_ms"}

    page = {one["id"]: one for one in (await fleet.admin("/debug/instance_loads"))["instances"]}
    assert page["a"]["total"] == pytest.approx(5 + 2.5, abs=0.6)  # the backlog ages
    for one in page.values():
        assert sum(term["contribution"] for term in one["terms"].values()) == pytest.approx(one["total"])
    assert page["c"]["signals"]["predicted_total_backlog_ms"]["value"] is None
    assert page["c"]["signals"]["predicted_total_backlog_ms"]["source"] == "imputed"
    assert page["a"]["signals"]["kv_usage"]["value"] is None
    assert (page["b"]["selected"], page["b"]["own_inflight"]) == (1, 0)


async def test_requests_go_only_to_instances_that_serve_the_model(fleet):
    """However idle another is."""
    await fleet.worker("a", plain(), models=("big",), inflight=50)
    await fleet.worker("b", plain(), models=("tiny",), inflight=0)
    await fleet.start()
    for _ in range(4):
        caller = await fleet.ask(b'{"model":"big"}')
        await caller.answer()
        assert caller.headers["x-forebay-instance"] == "a"


async def test_own_requests_in_flight_are_counted_and_spread(fleet):
    """Eight at once over four silent instances: two each, and none counted when all have left."""
    for name in "abcd":
        worker = await fleet.worker(name, waits)
        await worker.publish()
    await fleet.start()
    for count in range(1, 9):
        await fleet.ask()
        await until(lambda count=count: sum(len(worker.asked) for worker in fleet.workers.values()) == count)
    assert dict(fleet.replica.selection.inflight) == dict.fromkeys("abcd", 2)
    fleet.callers.close()
    await fleet.comes_to_rest()
    await until(lambda: all(worker.server.open == 0 for worker in fleet.workers.values()))


async def test_a_long_prompt_goes_where_it_fits_however_busy_it_is_there(fleet):
    """Of one model's engines one has the shorter context; a short prompt goes to the one that is free."""
    await fleet.worker("short", plain(), told={"context_tokens": 100}, inflight=0)
    await fleet.worker("long", plain(), told={"context_tokens": 100_000}, inflight=5)
    await fleet.start()
    long = b'{"model":"tiny","messages":[{"role":"user","content":"%b"}]}' % (b"word " * 2000)
    for body, instance in ((long, "long"), (BODY, "short"), (BODY.replace(b"{", b'{"max_tokens":101,', 1), "long")):
        caller = await fleet.ask(body)
        assert (await caller.answer())[0] == 200
        assert caller.headers["x-forebay-instance"] == instance


# -- elsewhere


@pytest.mark.parametrize("fails", [refuses(), refuses("429 Too Many Requests"), refuses("200 OK"), resets])
@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["plain", "stream"])
async def test_what_one_instance_does_not_take_another_answers(fleet, fails, body):
    """Once, before the first event; both requests are the same."""
    await fleet.worker("a", fails, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    caller = await fleet.ask(body)
    assert await caller.answer() == (200, ANSWER)
    assert caller.headers["x-forebay-instance"] == "b"
    assert [len(worker.asked) for worker in fleet.workers.values()] == [1, 1]
    assert fleet.workers["a"].asked[0].body == fleet.workers["b"].asked[0].body == body
    await until(lambda: fleet.lines)
    assert (fleet.lines[0].tries, fleet.lines[0].instance, fleet.lines[0].outcome) == (2, "b", "answered")


async def test_refused_everywhere_the_engines_own_answer_passes(fleet):
    """Status, Retry-After and bytes; the mark between us and the worker does not."""
    for name in "abc":
        await fleet.worker(name, refuses("429 Too Many Requests", b'{"error":"full"}', "retry-after: 7\r\n"))
    await fleet.start(tries=2)
    caller = await fleet.ask()
    assert await caller.answer() == (429, b'{"error":"full"}')
    assert caller.headers["retry-after"] == "7"
    assert "x-forebay-verdict" not in caller.headers
    assert [len(worker.asked) for worker in fleet.workers.values()] == [1, 1, 1]


async def test_a_request_on_which_engines_break_does_not_go_round_the_fleet(fleet):
    """It may be what breaks them: after some tries its client is told, and the others live."""
    for name in "abcde":
        await fleet.worker(name, lambda peer, _: peer.answer(b'{"error":"dead"}', status="500 No", more=BROKE))
    await fleet.start(tries=2)
    assert await (await fleet.ask()).answer() == (500, b'{"error":"dead"}')
    assert sum(len(worker.asked) for worker in fleet.workers.values()) == 2


async def test_no_worker_can_be_reached(fleet):
    """A 502 that says so; and the next request is tried again."""
    worker = await fleet.worker("a", plain())
    await fleet.start()
    await worker.server.close()
    for _ in range(2):
        status, body = await (await fleet.ask()).answer()
        assert status == 502
        assert msgspec.json.decode(body)["error"]["code"] == "worker_unreachable"


async def test_a_worker_that_answers_too_late_is_a_504(fleet):
    """And sees that nobody waits any longer."""
    worker = await fleet.worker("a", waits)
    await fleet.start(first_event_timeout_s=0.05)
    status, body = await (await fleet.ask()).answer()
    assert status == 504
    assert msgspec.json.decode(body)["error"]["code"] == "worker_timeout"
    await until(lambda: worker.server.open == 0)


@pytest.mark.parametrize("fails", [resets, refuses("502 Bad Gateway")], ids=["worker gone", "engine gone"])
async def test_an_instance_that_fails_fast_draws_no_traffic(fleet, fails):
    """It looks idle since its requests end at once: after the first failure it is left alone for a moment."""
    await fleet.worker("a", fails, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(20):
        assert (await (await fleet.ask()).answer())[0] == 200
    assert len(fleet.workers["a"].asked) <= 4
    assert len(fleet.workers["b"].asked) == 20


async def test_a_client_error_ejects_nobody(fleet):
    """A 4xx is the client's own."""
    await fleet.worker("a", plain(b"{}", status="400 Bad Request"), inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    for _ in range(3):
        assert (await (await fleet.ask()).answer())[0] == 400
    assert len(fleet.workers["a"].asked) == 3


async def test_a_stream_that_breaks_after_its_first_event_is_not_tried_elsewhere(fleet):
    """It ends with an error event, without [DONE]."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await may_break.wait()
        peer.reset()

    may_break = asyncio.Event()
    await fleet.worker("a", respond, inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    caller = await fleet.ask(STREAM_BODY)
    await caller.head()
    assert await caller.piece() == EVENT
    may_break.set()
    rest = await caller.body()
    assert rest.startswith(b'data: {"error":{"message":"the stream broke off')
    assert DONE not in rest
    assert not fleet.workers["b"].asked
    await until(lambda: fleet.lines)
    assert fleet.lines[0].outcome == "broken"


async def test_a_refusal_is_no_time_to_first_token(fleet):
    """Else an instance that refuses would make the gateway look fast."""
    await fleet.worker("a", refuses(), inflight=0)
    await fleet.worker("b", plain(), inflight=5)
    await fleet.start()
    await (await fleet.ask()).answer()
    [first, second] = fleet.replica.selection.decisions
    assert first.real_ttft_s is None
    assert second.real_ttft_s > 0


# -- a client that leaves


@pytest.mark.parametrize("when", ["before the answer", "in mid-stream"])
async def test_a_client_that_leaves_is_seen_by_the_worker_and_logged(fleet, when):
    """Its request ends everywhere, and one line says how."""

    async def respond(peer: Peer, _: Asked) -> None:
        if when == "in mid-stream":
            peer.start_stream(EVENT)
        await peer.gone()

    worker = await fleet.worker("a", respond)
    await fleet.start()
    caller = await fleet.ask(STREAM_BODY)
    await until(lambda: worker.asked)
    if when == "in mid-stream":
        await caller.head()
    caller.leave()
    await until(lambda: worker.server.open == 0)
    await fleet.comes_to_rest()
    [line] = fleet.lines
    assert (line.status, line.outcome, line.instance) == (499, "cancelled", "a")


async def test_a_storm_of_requests_leaves_nothing(fleet):
    """A hundred requests that end in every way: nothing in flight, one line each."""

    async def respond(peer: Peer, asked: Asked) -> None:
        way = msgspec.json.decode(asked.body)["way"]
        if way == 0:
            peer.answer(ANSWER)
        elif way == 1:
            peer.start_stream(EVENT, DONE, b"")
        elif way == 2:
            peer.answer(b"{}", status="429 No", more=REFUSED)
        elif way == 3:
            peer.start_stream(EVENT)
            await peer.drain()
            peer.reset()
        else:
            await peer.gone()

    async def one_request(way: int) -> None:
        caller = await fleet.ask(msgspec.json.encode({"model": "tiny", "way": way}))
        if way == 4:
            await asyncio.sleep(0)
            caller.leave()
        else:
            await caller.answer()

    for name in "abc":
        await fleet.worker(name, lives(respond))
    await fleet.start()
    await asyncio.gather(*(one_request(index % 5) for index in range(100)))
    await fleet.comes_to_rest()
    ends = [line.outcome for line in fleet.lines]
    assert {end: ends.count(end) for end in ends if end != "cancelled"} == {"answered": 40, "failed": 20, "broken": 20}
