"""The worker process: its pages, its end, and that it does not live on without one of its parts."""

import asyncio

import msgspec
import pytest

from bus.reader import Reader
from tests.bus.worker import lately_served
from tests.hop.scripted import Asked, Callers, Peer, until
from tests.servers import FakeBus
from tests.workers.answering import ANSWER
from workers.config import InstanceConfig, WorkerConfig
from workers.engine_watch import EngineWatch
from workers.process import serve as serve_worker

EVENT = b'data: {"choices":[{"index":0}]}\n\n'


def streams(peer: Peer, _: Asked) -> None:
    """An engine that answers at once."""
    peer.start_stream(EVENT, b"data: [DONE]\n\n", b"")


async def test_the_pages_of_a_worker(site):
    """Health by instance, metrics, and the last predictions with what came."""
    one = await site(streams)
    await (await one.ask()).answer()
    await one.comes_to_rest()
    admin = f"http://127.0.0.1:{one.worker.admin_port}"
    pages = {}
    for path in ("/health", "/metrics", "/debug/predictions"):
        caller = await one._callers.ask(admin, path, method="GET")
        status, pages[path] = await caller.answer()
        assert status == 200
    assert msgspec.json.decode(pages["/health"]) == {"status": "ok", "instances": {"a": "ready"}}
    assert b'forebay_worker_requests_total{instance="a",outcome="answered"} 1.0' in pages["/metrics"]
    assert b'forebay_worker_inflight{instance="a"} 0.0' in pages["/metrics"]
    assert b'forebay_worker_ttft_prediction_error_count{instance="a"} 1.0' in pages["/metrics"]
    assert b'forebay_pressure{instance="a",signal="ready_queue_depth"} 0.0' in pages["/metrics"]
    assert b'signal="kv_usage"' not in pages["/metrics"], "unknown is not zero"
    [prediction] = msgspec.json.decode(pages["/debug/predictions"])["a"]
    assert prediction["predicted_ttft_s"] > 0
    assert prediction["real_ttft_s"] > 0


async def test_a_worker_that_stops_says_that_its_instances_are_gone(site):
    """Readers see it at once, and remember the model."""
    one = await site(streams)
    await until(lambda: one.instance.watch.models)
    reader = Reader(one.bus.connect(), "default", budget_s=2.0)
    await until(lambda: one.instance.publisher.published >= 2)
    await one.worker.stop()
    view = await reader.view()
    assert view.live(0.0) == []
    assert lately_served(view) == {"tiny"}
    await reader.close()


async def test_a_worker_without_one_of_its_parts_ends_and_says_why(monkeypatch):
    """A fault of ours in the watch must not leave a queue that nobody publishes."""

    async def fail(_: EngineWatch) -> None:
        raise ZeroDivisionError("a fault of ours")

    bus = FakeBus()
    monkeypatch.setattr("workers.process.connect", lambda *_, **__: bus.connect())
    monkeypatch.setattr(EngineWatch, "_read_load", fail)
    config = WorkerConfig(instances=(InstanceConfig("a", "http://127.0.0.1:9"),), drain_s=0.05)
    async with asyncio.timeout(5.0):
        with pytest.raises(ExceptionGroup) as ended:
            await serve_worker(config, asyncio.Event())
    assert ended.group_contains(ZeroDivisionError, match="a fault of ours")
    await bus.close()


async def test_told_to_stop_a_worker_ends_in_order(monkeypatch):
    """Nothing is left of it."""
    bus, callers = FakeBus(), Callers()
    monkeypatch.setattr("workers.process.connect", lambda *_, **__: bus.connect())
    config = WorkerConfig(instances=(InstanceConfig("a", "http://127.0.0.1:9"),), drain_s=0.05)
    before, stop = asyncio.all_tasks(), asyncio.Event()
    task = asyncio.create_task(serve_worker(config, stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(5.0):
        await task
    assert {left for left in asyncio.all_tasks() - before if not left.done()} == set()
    callers.close()
    await bus.close()


@pytest.mark.parametrize(("advertised", "told"), [("", 1), ("10.0.0.5", 0)])
async def test_a_worker_that_other_machines_cannot_dial_says_so(monkeypatch, caplog, advertised, told):
    """The bus is elsewhere, and the worker on loopback: proxies there would dial themselves."""
    bus = FakeBus()
    monkeypatch.setattr("workers.process.connect", lambda *_, **__: bus.connect())
    stop = asyncio.Event()
    stop.set()
    config = WorkerConfig(
        redis="redis://10.0.0.2:6379/0",
        instances=(InstanceConfig("a", "http://127.0.0.1:1"),),
        advertise_host=advertised,
    )

    await serve_worker(config, stop)

    assert caplog.text.count("instance a: proxies of other machines cannot dial http://127.0.0.1:") == told
    await bus.close()


async def test_a_fault_in_the_estimates_costs_signals_and_no_request(site, monkeypatch, caplog):
    """The record says what needs no estimate, the log says it once, and requests are served; then all is well again."""

    def fail(*_, **__) -> None:
        raise ZeroDivisionError("a fault of ours")

    one = await site(streams)
    reader = Reader(one.bus.connect(), "default", budget_s=2.0)
    with monkeypatch.context() as broken:
        broken.setattr("workers.instance.make_record", fail)
        before = one.instance.publisher.published
        assert (await (await one.ask()).answer())[0] == 200
        await until(lambda: one.instance.publisher.published >= before + 2)
        [pressure] = (await reader.view()).live(0.0)
        assert (pressure.record.state, pressure.record.inflight) == ("ready", 0)
        assert pressure.record.predicted_wait_ms is None
    assert caplog.text.count("a fault of ours in its estimates") == 1
    one.instance.publisher.changed()
    before = one.instance.publisher.published
    await until(lambda: one.instance.publisher.published > before)
    [pressure] = (await reader.view()).live(0.0)
    assert pressure.record.predicted_wait_ms is not None
    await reader.close()


@pytest.mark.parametrize("what", ["workers.timeline.Timeline.plan", "workers.timeline.Timeline._learn_from_end"])
async def test_an_estimate_that_fails_costs_no_request(site, monkeypatch, caplog, what):
    """Neither taking it in, nor refusing it where the queue is full, nor its end needs one."""

    def fail(*_, **__) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(what, fail)
    release = asyncio.Event()

    async def respond(peer: Peer, asked: Asked) -> None:
        await release.wait()
        peer.answer(ANSWER)

    one = await site(respond, slots=1, queue_limit=0)
    first = await one.ask(is_stream=False)
    await until(lambda: one.posts)
    refused = await one.ask(is_stream=False)
    assert (await refused.answer())[0] == 429
    release.set()
    assert (await first.answer())[0] == 200
    await one.comes_to_rest()
    assert (await (await one.ask(is_stream=False)).answer())[0] == 200
    assert caplog.text.count("a fault of ours in its estimates") == 1


async def test_a_worker_says_at_its_start_how_many_slots_it_has(site, caplog):
    """The default fits few engines, and nothing else would tell."""
    with caplog.at_level("INFO", logger="forebay.worker"):
        await site(streams, slots=5)
    assert "instance a: 5 slots, so many of its requests run at once on the engine (--slots)" in caplog.messages
