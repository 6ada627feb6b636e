"""`forebay why`: a past choice, explained."""

import asyncio
import io

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner
from rich.console import Console

from deploy import why_view
from deploy.commands.why import why

TERM = {"value": 0.5, "weight": 1.0, "contribution": 0.5}

CHOICE = {
    "request_id": "r1",
    "at": 0.0,
    "pool": "default",
    "model": "m",
    "prompt_tokens": 386,
    "output_cap": None,
    "strategy": "predicted_ttft",
    "tier": "measured",
    "chosen": "b",
    "score": 0.5,
    "runner_up": "a",
    "runner_up_score": 0.75,
    "margin": 0.25,
    "decided_by": "bus",
    "predicted_ttft_s": 0.1,
    "real_ttft_s": 0.12,
    "imputed": {},
    "candidates_in_all": 30,
    "candidates": [
        {
            "id": "a",
            "total": 0.25,
            "score": 0.75,
            "terms": {"wait_s": TERM, "others_s": {"value": 2.0, "weight": 0.1, "contribution": 0.2}},
            "imputed": {},
            "predicted_ttft_s": 0.2,
            "in_transit_seen": {"tokens": 0, "requests": 0},
            "in_transit_when_chosen": {"tokens": 1200, "requests": 2},
        },
        {
            "id": "b",
            "total": 0.5,
            "score": 0.5,
            "terms": {"wait_s": TERM},
            "imputed": {"kv_usage": "a", "predicted_wait_ms": "a"},
            "predicted_ttft_s": 0.1,
            "in_transit_seen": {"tokens": 7, "requests": 1},
            "in_transit_when_chosen": None,
        },
    ],
}


def shown(choice: dict) -> str:
    """The text of one choice as it appears on a wide terminal."""
    console = Console(width=240, file=io.StringIO())
    page = why_view.decode(msgspec.json.encode({"selections": [choice]}))
    console.print(why_view.render(page.selections[0], attempt=1))
    return console.file.getvalue()


def test_a_choice_is_a_sentence_and_a_line_for_each_candidate():
    """Who was chosen, how close it was, what others had reserved in between, what was predicted and what came."""
    text = shown(CHOICE)
    assert "r1 (386 prompt tokens, model m) went to b by predicted_ttft on measured signals, 0.2500 ahead of a" in text
    assert "chosen on the bus" in text
    assert "TTFT predicted 100 ms, real 120 ms" in text
    assert "0 → 1200" in text
    assert "2 × 0.1" in text
    assert "b is silent on kv_usage, predicted_wait_ms: taken from a" in text
    assert "28 worse candidates are not shown" in text


def test_what_is_not_known_is_a_dash_and_never_a_zero():
    """No prediction, no real time yet, no term, no runner-up."""
    lonely = {**CHOICE, "runner_up": None, "margin": None, "predicted_ttft_s": None, "real_ttft_s": None}
    lonely["candidates"] = [{**CHOICE["candidates"][1], "predicted_ttft_s": None, "terms": {}}]
    text = shown(lonely)
    assert "the only candidate" in text
    assert "TTFT predicted" not in text
    assert "–" in text


@pytest.fixture
async def replica():
    """A stand-in for a replica's admin listener that remembers one request."""

    async def page(request: web.Request) -> web.Response:
        found = [CHOICE] if request.query.get("request_id") == "r1" else []
        return web.Response(body=msgspec.json.encode({"selections": found}))

    app = web.Application()
    app.router.add_get("/debug/selections", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def run(*words: str):
    """Run the command in a thread, since it brings an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, why, list(words))


async def test_the_replica_that_remembers_a_request_answers(replica):
    """One target is dead, the other knows."""
    result = await run("r1", "--target", "http://127.0.0.1:9", "--target", replica)
    assert result.exit_code == 0
    assert "went to b" in result.output


async def test_a_request_nobody_remembers_is_one_clear_error(replica):
    """Exit status 1, and the id in the message."""
    result = await run("unheard-of", "--target", replica)
    assert result.exit_code == 1
    assert "no replica that answered remembers a request 'unheard-of'" in result.output
