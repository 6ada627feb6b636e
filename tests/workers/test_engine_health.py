"""An engine that fails at its work: its worker says so to all, and lets it back by a request of its own."""

import pytest

from bus.keys import pressure_key
from bus.record import decode_record
from tests.bus.worker import until
from tests.hop.scripted import Asked, Peer

WHOLE = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


def stream(peer: Peer, body: bytes) -> None:
    """Answer with an event stream."""
    peer.answer(body, kind="text/event-stream")


async def is_now(one, state: str) -> bool:
    """Whether the record on the bus tells this state."""
    raw = await one.bus.client.hget(pressure_key("default", "a"), "record")
    return decode_record(raw).record.state == state


@pytest.mark.parametrize(
    "broken",
    [
        lambda peer: peer.reset(),
        lambda peer: peer.answer(b"{}", status="500 Internal Server Error"),
        lambda peer: stream(peer, b'data: {"error":{"code":500}}\n\ndata: [DONE]\n\n'),
    ],
    ids=["reset", "500", "error event"],
)
async def test_an_engine_that_breaks_is_failing_until_it_answers_its_worker(site, broken):
    """The record says so within a publish, and no client's request is needed to undo it."""
    is_broken = True

    def respond(peer: Peer, asked: Asked) -> None:
        broken(peer) if is_broken else stream(peer, WHOLE)

    one = await site(respond)
    await (await one.ask()).answer()
    await until(lambda: is_now(one, "failing"))
    await until(lambda: len(one.posts) >= 2)
    assert await is_now(one, "failing")
    is_broken = False
    await until(lambda: is_now(one, "ready"))
    assert one.posts[-1].target == "/v1/completions"
    assert b'"max_tokens":8' in one.posts[-1].body
    assert b'"model":"tiny"' in one.posts[-1].body


async def test_a_request_that_is_answered_lets_the_engine_back_too(site):
    """Whatever tells that it works."""
    answers = iter([lambda peer: peer.answer(b"{}", status="500 No"), lambda peer: stream(peer, WHOLE)])
    one = await site(lambda peer, _: next(answers)(peer))
    await (await one.ask()).answer()
    await until(lambda: one.instance.health.is_failing)
    await (await one.ask()).answer()
    await until(lambda: not one.instance.health.is_failing)
    assert len(one.posts) == 2


@pytest.mark.parametrize("code", [400, 404])
async def test_a_clients_mistake_says_nothing_of_the_engine(site, code):
    """As a status, and as the first event of a stream."""
    one = await site(lambda peer, _: stream(peer, b'data: {"error":{"code":%d}}\n\n' % code))
    await (await one.ask()).answer()
    await one.comes_to_rest()
    assert not one.instance.health.is_failing


async def test_an_engine_without_completions_works_if_it_says_so(site):
    """404 to the request of our own is an answer."""

    def respond(peer: Peer, asked: Asked) -> None:
        if asked.target == "/v1/completions":
            peer.answer(b'{"detail":"Not Found"}', status="404 Not Found")
        else:
            peer.reset()

    one = await site(respond)
    await (await one.ask()).answer()
    await until(lambda: one.instance.health.is_failing)
    await until(lambda: not one.instance.health.is_failing)
