"""Clients of a worker that leave, waiting or in mid-answer: the engine is told, and nothing is left behind."""

import asyncio

import msgspec
import pytest

from tests.hop.scripted import Asked, Peer, until
from tests.workers.answering import ANSWER, DONE, EVENT, USAGE, turns


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "plain"])
async def test_a_client_that_leaves_before_the_answer_is_seen_by_the_engine(site, is_stream):
    """Its connection closes, and slot and counts are free."""
    left = asyncio.Event()

    async def respond(peer: Peer, _: Asked) -> None:
        await peer.gone()
        left.set()

    one = await site(respond)
    caller = await one.ask(is_stream=is_stream)
    await until(lambda: one.posts)
    caller.leave()
    await asyncio.wait_for(left.wait(), 5.0)
    await one.comes_to_rest()
    assert one.outcomes() == {"cancelled": 1}


async def test_a_client_that_leaves_in_mid_stream_is_seen_by_the_engine(site):
    """Also while the engine is sending more than the client reads."""
    left = asyncio.Event()

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        try:
            while True:
                peer.chunk(EVENT * 500)
                await peer.drain()
        finally:
            left.set()

    one = await site(respond)
    caller = await one.ask()
    await caller.head()
    caller.leave()
    await asyncio.wait_for(left.wait(), 5.0)
    await one.comes_to_rest()
    assert one.outcomes() == {"cancelled": 1}


async def test_a_waiting_client_that_leaves_never_reaches_the_engine(site):
    """And the one behind it gets the slot."""
    gate = asyncio.Event()

    async def respond(peer: Peer, _: Asked) -> None:
        await gate.wait()
        peer.answer(ANSWER)

    one = await site(respond, slots=1)
    first = await one.ask()
    await one.reaches(PREFILL=1)
    second = await one.ask(x_request_id="gone")
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    third = await one.ask(x_request_id="behind")
    await one.reaches(PREFILL=1, READY_QUEUE=2)
    second.leave()
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    gate.set()
    assert await first.answer() == await third.answer() == (200, ANSWER)
    assert [asked.headers.get("x-request-id") for asked in one.posts] == [None, "behind"]


async def test_a_storm_of_requests_leaves_nothing(site):
    """A hundred requests that end in every way: all places are free again and every end is counted once."""
    ways = ["stream", "plain", "refuse", "reset", "break", "leave", "bad"]

    async def respond(peer: Peer, asked: Asked) -> None:
        way = msgspec.json.decode(asked.body).get("way", "plain")  # none: what the worker asks after failures
        if way == "stream":
            peer.start_stream(EVENT, USAGE, DONE, b"")
        elif way == "plain":
            peer.answer(ANSWER)
        elif way == "refuse":
            peer.answer(b"{}", status="503 No")
        elif way == "reset":
            peer.reset()
        elif way == "break":
            peer.start_stream(EVENT)
            await peer.drain()
            peer.reset()
        elif way == "bad":
            peer.answer(b"{}", status="400 Bad")
        else:
            await peer.gone()

    async def one_request(way: str) -> None:
        caller = await one.ask(msgspec.json.encode({"way": way}), strips=True, is_stream=way != "plain")
        if way == "leave":
            await turns()
            caller.leave()
        else:
            await caller.answer()

    one = await site(respond, slots=3, queue_limit=1000)
    await asyncio.gather(*(one_request(ways[index % len(ways)]) for index in range(105)))
    await one.comes_to_rest()
    outcomes = one.outcomes()
    assert sum(outcomes.values()) == 105
    assert outcomes == {"answered": 30, "declined": 15, "failed": 30, "rejected": 15, "cancelled": 15}
