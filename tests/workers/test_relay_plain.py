"""Plain answers through a worker: status, bytes, what is a refusal."""

import asyncio

import msgspec
import pytest

from bus.hop.headers import BROKE, REFUSED, VERDICT
from tests.hop.scripted import Asked, Peer
from tests.workers.answering import ANSWER, SHUTS_DOWN, plain
from workers.engine_health import FAILURES
from workers.relay import HELD_ANSWER_BYTES

# -- plain answers


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "404 Not Found", "422 Unprocessable Entity"])
async def test_status_headers_and_body_of_a_plain_answer_pass(site, status):
    """An error that is the client's own is no refusal."""
    one = await site(plain(ANSWER, status=status, more="x-engine: 1\r\nx-forebay-verdict: refused\r\n"))
    caller = await one.ask(is_stream=False)
    assert await caller.answer() == (int(status[:3]), ANSWER)
    assert caller.headers["content-type"] == "application/json"
    assert caller.headers["x-engine"] == "1"
    assert VERDICT not in caller.headers
    await one.comes_to_rest()
    assert one.outcomes() == {"answered" if status.startswith("2") else "rejected": 1}


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("429 Too Many Requests", REFUSED), ("500 Internal Server Error", BROKE), ("503 Service Unavailable", REFUSED)],
)
async def test_a_refusal_of_the_engine_keeps_its_status_and_bytes_and_is_marked(site, status, verdict):
    """For the case that there is no elsewhere; Retry-After of the engine included."""
    one = await site(plain(b"Internal Server Error", status=status, kind="text/plain", more="retry-after: 7\r\n"))
    caller = await one.ask(is_stream=False)
    assert await caller.answer() == (int(status[:3]), b"Internal Server Error")
    assert (caller.headers[VERDICT], caller.headers["retry-after"]) == (verdict, "7")


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "event"])
async def test_a_500_that_says_the_engine_shuts_down_is_one_that_declined(site, is_stream):
    """Nothing of the request was done: it uses up no try, and is no failure at the engine's work."""
    answer = (b"data: " + SHUTS_DOWN + b"\n\n", "200 OK", "text/event-stream")
    body, status, kind = answer if is_stream else (SHUTS_DOWN, "500 Internal Server Error", "application/json")
    one = await site(plain(body, status=status, kind=kind))
    for _ in range(FAILURES):
        caller = await one.ask(is_stream=is_stream)
        assert await caller.answer() == (int(status[:3]), body)
        assert caller.headers[VERDICT] == REFUSED
    await one.comes_to_rest()
    assert one.outcomes() == {"declined": FAILURES}
    assert not one.instance.health.is_failing


@pytest.mark.parametrize(
    ("code", "verdict"), [(503, REFUSED), (429, REFUSED), (500, BROKE), ("null", BROKE), (400, None)]
)
async def test_what_a_stream_begins_with_says_what_became_of_it(site, code, verdict):
    """The status was sent before the engine decided; a mistake of the client's is no refusal."""
    one = await site(plain(b'data: {"error":{"code":%b}}\n\n' % str(code).encode(), kind="text/event-stream"))
    caller = await one.ask()
    await caller.answer()
    assert caller.headers.get(VERDICT) == verdict


async def test_a_plain_answer_that_breaks_is_a_502_that_may_go_elsewhere(site):
    """Half an answer is no answer."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{half")
        await peer.drain()
        peer.reset()

    one = await site(respond)
    caller = await one.ask(is_stream=False)
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, BROKE)
    assert b'"code":"engine_broke_off"' in body
    await one.comes_to_rest()
    assert one.outcomes() == {"failed": 1}


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
async def test_an_answer_that_is_not_the_json_it_is_said_to_be_is_a_502_that_may_go_elsewhere(site, is_stream):
    """However an engine came to say it with status 200: half a document is no answer."""
    one = await site(plain(ANSWER[:20]))
    caller = await one.ask(is_stream=is_stream)
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, BROKE)
    assert b'"code":"engine_broke_off"' in body
    await one.comes_to_rest()
    assert one.outcomes() == {"failed": 1}


@pytest.mark.parametrize(
    ("body", "more"),
    [(b"", {"kind": "text/plain"}), (b"\x1f\x8b", {"more": "content-encoding: gzip\r\n"}), (b"[1]", {})],
    ids=["not said to be JSON", "compressed", "JSON without usage"],
)
async def test_any_other_answer_passes_whatever_it_holds(site, body, more):
    """Speech, vectors, compressed answers: only what is said to be JSON can be seen to be none."""
    one = await site(plain(body, **more))
    assert await (await one.ask(is_stream=False)).answer() == (200, body)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize("is_clients_key", [False, True], ids=["our key", "the client's key"])
async def test_an_engine_that_does_not_know_our_key_refuses_and_one_that_does_not_know_the_clients_answers(
    site, status, is_clients_key
):
    """A wrong key of ours is no fault of the client's: another instance may have the right one."""
    one = await site(plain(b'{"error":"Unauthorized"}', status=status), forward_authorization=is_clients_key)
    caller = await one.ask(is_stream=False)
    assert await caller.answer() == (int(status[:3]), b'{"error":"Unauthorized"}')
    assert caller.headers.get(VERDICT) == (None if is_clients_key else REFUSED)


async def test_an_engine_that_floods_without_an_event_is_left_and_may_be_tried_elsewhere(site):
    """What is held for a first event is bounded: comments without end are none."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream()
        while True:
            peer.chunk(b":" * 65_536)
            await peer.drain()

    one = await site(respond)
    caller = await one.ask()
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, BROKE)
    assert b"no event in the first" in body


async def test_a_plain_answer_teaches_the_length_of_answers(site):
    """Its usage is read on its way."""
    one = await site(plain())
    await (await one.ask(is_stream=False)).answer()
    await one.comes_to_rest()
    assert one.instance.timeline.output_tokens.samples == 1


@pytest.mark.parametrize("has_length", [True, False], ids=["with length", "chunked"])
async def test_a_large_plain_answer_passes_whole(site, has_length):
    """Larger than what is held: audio, or the embeddings of many texts."""
    large = bytes(range(256)) * (HELD_ANSWER_BYTES // 256 + 100)

    async def respond(peer: Peer, _: Asked) -> None:
        if has_length:
            peer.answer(large, kind="audio/wav")
        else:
            peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n")
            peer.chunk(large)
            peer.chunk(b"")
        await peer.drain()

    one = await site(respond)
    caller = await one.ask(is_stream=False, path="/v1/audio/speech")
    status, body = await caller.answer()
    assert (status, len(body), body == large) == (200, len(large), True)


async def test_a_large_plain_answer_that_breaks_is_a_failure_of_its_engine(site):
    """Half of it is out: the client sees it break, and the engine is one that fails."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n")
        peer.say(b"content-length: %d\r\n\r\n" % (2 * HELD_ANSWER_BYTES) + b"x" * (HELD_ANSWER_BYTES + 100_000))
        await peer.drain()
        peer.close()

    one = await site(respond)
    caller = await one.ask(is_stream=False, path="/v1/audio/speech")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await caller.answer()
    await one.comes_to_rest()
    assert one.outcomes() == {"failed": 1}


async def test_a_body_cut_in_the_middle_of_a_plain_answer_is_a_502(site):
    """In OpenAI's shape, and not half an answer."""

    def cut(peer: Peer, _: Asked) -> None:
        peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n" + ANSWER)
        peer.close()

    one = await site(cut)
    caller = await one.ask(is_stream=False)
    status, body = await caller.answer()
    assert (status, caller.headers[VERDICT]) == (502, BROKE)
    assert msgspec.json.decode(body)["error"]["code"] == "engine_broke_off"
