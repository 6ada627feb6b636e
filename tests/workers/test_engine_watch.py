"""What a worker learns of its engine from outside, and what no page of an engine can do to it."""

import logging

import pytest

from tests.hop.scripted import Asked, Peer, repeat, until
from tests.workers.conftest import engine_script
from workers.engines import EngineLoad
from workers.timeline import Stage


async def nothing(peer: Peer, _: Asked) -> None:
    """An engine that takes requests and says nothing."""
    await peer.gone()


PAGE = b"vllm:num_requests_running 5.0\nvllm:num_requests_waiting 2.0\nvllm:kv_cache_usage_perc 0.5\n"


async def test_kind_models_and_load_are_learned_and_published(site):
    """The registration names the models; requests that are not ours hold slots."""
    one = await site(nothing, metrics=PAGE)
    watch = one.instance.watch
    await until(lambda: watch.load.running is not None and watch.models)
    assert (watch.adapter.kind, watch.models) == ("vllm", ("tiny",))
    assert watch.load == EngineLoad(running=5, waiting=2, kv_usage=0.5)
    assert one.instance.timeline.foreign == 5
    registration = one.instance._registration()
    assert (registration.kind, registration.models) == ("vllm", ("tiny",))
    record = one.instance._make_record(1, 1)
    assert (record.engine_running, record.engine_waiting, record.kv_usage) == (5, 2, 0.5)


async def test_our_own_requests_are_not_foreign(site):
    """The engine counts ours too: three of its five are somebody else's."""
    one = await site(nothing, metrics=PAGE)
    for count in (1, 2):
        await one.ask()
        await one.reaches(PREFILL=count)
    await until(lambda: one.instance.timeline.foreign == 3)
    assert one.instance.timeline.count(Stage.PREFILL) == 2
    one._callers.close()


async def test_a_page_that_can_no_longer_be_read_makes_the_load_unknown_and_is_said_once(site, serve, caplog):
    """Not zero, and not the last value; the models stay, and the engine is not dead."""

    async def respond(peer: Peer, asked: Asked) -> None:
        if asked.target == "/metrics" and is_broken:
            peer.answer(b"Unauthorized", status="401 Unauthorized")
        elif asked.target == "/metrics":
            peer.answer(PAGE, kind="text/plain")
        else:
            peer.answer(b'{"data":[{"id":"tiny"}]}')

    is_broken = False
    engine = await serve(lambda peer: repeat(peer, respond))
    one = await site(nothing, engine_url=engine.url, scrape_interval_ms=50)
    watch = one.instance.watch
    await until(lambda: watch.load.running == 5)
    with caplog.at_level(logging.INFO):
        is_broken = True
        await until(lambda: watch.load == EngineLoad())
        asked = len(engine.asked)
        await until(lambda: len(engine.asked) >= asked + 3)
        is_broken = False
        await until(lambda: watch.load.running == 5)
    assert one.instance.timeline.foreign == 5
    assert watch.models == ("tiny",)
    said = [record.getMessage() for record in caplog.records if "/metrics" in record.getMessage()]
    assert said == [
        "instance a: /metrics answers 401: what it tells is unknown",
        "instance a: /metrics can be read again",
    ]


@pytest.mark.parametrize(
    "models",
    [
        b"",
        b"not json",
        b"[]",
        b'{"data":{}}',
        b'{"data":[{"id":1}]}',
        b'{"data":[{"id":"\xff"}]}',
        b'{"data":' + b"[" * 100_000,
    ],
)
async def test_a_page_of_models_that_is_none_does_not_stop_the_watch(site, serve, models):
    """The load is read all the same, again and again."""

    def respond(peer: Peer, asked: Asked) -> None:
        peer.answer(PAGE if asked.target == "/metrics" else models)

    engine = await serve(lambda peer: repeat(peer, respond))
    one = await site(nothing, engine_url=engine.url, scrape_interval_ms=50)
    await until(lambda: [asked.target for asked in engine.asked].count("/metrics") >= 3)
    assert one.instance.watch.load.running == 5
    assert one.instance.watch.models == ()
    assert not any(task.done() for task in one.worker.tasks)


async def test_an_engine_that_comes_later_is_recognised_then(site, serve):
    """Until it answers its kind is unknown, and so is its load."""
    engine = await serve(engine_script(nothing, metrics=PAGE))
    port = engine.url
    await engine.close()
    one = await site(nothing, engine_url=port, scrape_interval_ms=50)
    await until(lambda: one.instance.watch.failures >= 2)
    assert one.instance._registration().kind == "unknown"
    assert one.instance.watch.load == EngineLoad()
