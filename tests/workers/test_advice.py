"""What an operator is told once: prefixes that are cached and not told, slots that are fewer than the engine's."""

import pytest

from tests.hop.scripted import Asked, Peer, repeat, until
from tests.workers.answering import plain
from tests.workers.conftest import CHAT
from workers.advice import CACHE_UNTOLD, IDLE_BEHIND_QUEUE_S, SLOTS_TOO_FEW, UNTOLD_ANSWERS, Advice
from workers.engines import EngineLoad

IDLE = EngineLoad(running=16, waiting=0, kv_usage=0.1)


def after_hits(*hits: float | None) -> Advice:
    """Advice on an engine whose prefix cache has told so many hits, one reading after the other."""
    advice = Advice(slots=16)
    for each in hits:
        advice.saw_load(0.0, EngineLoad(prefix_cache_hits=each), queued=0)
    return advice


# -- the prefix cache


def test_hits_of_which_no_answer_tells_are_said_once():
    """After as many answers that those with the hits are among them."""
    advice = after_hits(0, 128)
    said = [advice.saw_completion(None) for _ in range(3 * UNTOLD_ANSWERS)]
    assert [number for number, words in enumerate(said, 1) if words] == [UNTOLD_ANSWERS]
    assert said[UNTOLD_ANSWERS - 1] == CACHE_UNTOLD


@pytest.mark.parametrize(
    "hits", [(), (0, 0), (500, 500), (None, 500), (500, 0)], ids=["none", "zero", "old", "unknown", "restarted"]
)
def test_without_hits_that_were_seen_to_come_nothing_is_said(hits):
    """A cache that is off or never hits costs nothing, and hits from before may have been told."""
    advice = after_hits(*hits)
    assert not any(advice.saw_completion(None) for _ in range(3 * UNTOLD_ANSWERS))


@pytest.mark.parametrize("told_at", [0, UNTOLD_ANSWERS - 1])
def test_an_engine_that_tells_cached_tokens_now_and_then_tells_them(told_at):
    """Some leave them out where there are none."""
    advice = after_hits(0, 128)
    assert not any(advice.saw_completion(16 if number == told_at else None) for number in range(3 * UNTOLD_ANSWERS))


# -- slots


@pytest.mark.parametrize(
    ("load", "queued"),
    [
        (IDLE, 0),
        (EngineLoad(waiting=1, kv_usage=0.1), 5),
        (EngineLoad(waiting=0, kv_usage=0.5), 5),
        (EngineLoad(waiting=None, kv_usage=0.1), 5),
        (EngineLoad(waiting=0, kv_usage=None), 5),
    ],
    ids=["nothing waits", "the engine's queue", "a full cache", "waiting unknown", "cache unknown"],
)
def test_a_moment_in_which_the_queue_has_its_reason_starts_the_minute_anew(load, queued):
    """Only what lasts is a setting; unknown is no reason to speak."""
    advice = Advice(slots=16)
    assert advice.saw_load(0.0, IDLE, queued=5) is None
    assert advice.saw_load(IDLE_BEHIND_QUEUE_S - 1, load, queued=queued) is None
    assert advice.saw_load(IDLE_BEHIND_QUEUE_S, IDLE, queued=5) is None
    words = advice.saw_load(2 * IDLE_BEHIND_QUEUE_S, IDLE, queued=5)
    assert words is not None
    assert "more than 16 at once" in words


# -- in the worker's log


def page(**samples: float) -> bytes:
    """A page of vLLM with these."""
    return b"".join(b"vllm:%b %f\n" % (name.encode(), value) for name, value in samples.items())


async def test_a_worker_says_that_its_slots_are_too_few(site, caplog):
    """A request waits for a minute, and the engine has nothing to do."""

    async def waits(peer: Peer, _: Asked) -> None:
        await peer.gone()

    def said() -> list[str]:
        return [message for message in caplog.messages if "--slots" in message]

    one = await site(waits, slots=1, metrics=page(num_requests_waiting=0, kv_cache_usage_perc=0.1))
    await one.ask()
    await one.reaches(PREFILL=1)
    await one.ask()
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    real = one.instance._clock
    asked = len(one.engine.asked)
    await until(lambda: len(one.engine.asked) >= asked + 3)
    assert not said()
    one.instance._clock = lambda: real() + IDLE_BEHIND_QUEUE_S
    await until(said)
    asked = len(one.engine.asked)
    await until(lambda: len(one.engine.asked) >= asked + 3)
    assert said() == ["instance a: " + SLOTS_TOO_FEW.format(slots=1)]
    one._callers.close()


async def test_a_worker_says_that_cached_tokens_are_not_told(site, serve, caplog):
    """The engine counts hits, and its completions say nothing of them; that its responses do helps nobody."""
    hits = 0.0
    response = b'{"usage":{"input_tokens":20,"output_tokens":3,"input_tokens_details":{"cached_tokens":16}}}'

    def respond(peer: Peer, asked: Asked) -> None:
        nonlocal hits
        if asked.target == "/v1/responses":
            peer.answer(response)
        elif asked.method == "POST":
            plain()(peer, asked)
        elif asked.target == "/metrics":
            hits += 16
            peer.answer(page(num_requests_running=0, prefix_cache_hits_total=hits), kind="text/plain")
        else:
            peer.answer(b'{"data":[{"id":"tiny"}]}')

    engine = await serve(lambda peer: repeat(peer, respond))
    one = await site(plain(), engine_url=engine.url)
    await until(lambda: one.instance.watch.load.prefix_cache_hits is not None and hits >= 64)
    for _ in range(UNTOLD_ANSWERS):
        for path in ("/v1/responses", CHAT):
            await (await one.ask(is_stream=False, path=path)).answer()
    await one.comes_to_rest()
    assert [message for message in caplog.messages if "cached tokens" in message] == [f"instance a: {CACHE_UNTOLD}"]
