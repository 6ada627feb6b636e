"""Engines start, stop and share a process."""

import asyncio

import aiohttp
import msgspec
import pytest

from deploy.engine.batching import EngineModel
from deploy.engine.config import EngineConfig
from deploy.engine.server import SimulatedEngine, serve

from .conftest import FROZEN, Watch, chat

CHAT = "/v1/chat/completions"


async def test_serve_hosts_several_engines_until_it_is_told_to_stop(client):
    """Given two configurations, then both URLs are told, both answer, and both are gone after the stop."""
    stop = asyncio.Event()
    told: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    configs = [EngineConfig(models=(name,)) for name in ("one", "two")]
    serving = asyncio.create_task(serve(configs, stop=stop, ready=told.set_result))
    urls = await told
    names = []
    for url in urls:
        async with client.get(url + "/v1/models") as response:
            names.append((await response.json())["data"][0]["id"])
    assert names == ["one", "two"]
    stop.set()
    await serving
    for url in urls:
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get(url + "/health")


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_running(start_engine, client):
    """The first engine of a group does not outlive the failure of the second."""
    taken = await start_engine()
    port = int(taken.url.rsplit(":", 1)[1])
    first = EngineConfig()
    with pytest.raises(OSError, match="address already in use"):
        await serve([first, EngineConfig(port=port)], stop=asyncio.Event())
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    async with client.get(taken.url + "/health") as response:
        assert response.status == 200


async def test_stopping_resets_what_is_under_way(start_engine, client):
    """A request in its first step gets a broken connection, not an answer, when its engine goes."""
    engine = await start_engine(batching=FROZEN)
    watch = Watch(engine)
    request = asyncio.create_task(client.post(engine.url + CHAT, json=chat()))
    await watch.submitted.wait()
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await request


async def test_stopping_twice_is_stopping_once(start_engine):
    """A second stop has nothing to do, nor has one before the start."""
    engine = await start_engine()
    await engine.stop()
    await engine.stop()
    await SimulatedEngine(EngineConfig()).stop()


async def test_an_engine_keeps_its_time(start_engine, client):
    """Forty tokens take at least their forty steps, and no step is counted twice."""
    engine = await start_engine(batching=EngineModel(speed=10.0))
    began = asyncio.get_running_loop().time()
    async with client.post(engine.url + CHAT, json=chat(40)) as response:
        await response.read()
    took_s = asyncio.get_running_loop().time() - began
    model = engine.config.batching
    # Two milliseconds: the resolution of the loop's clock at both ends.
    steps_s = model.step_s(prefill_tokens=2, decoding=0) + 39 * model.step_s(prefill_tokens=0, decoding=1)
    assert took_s >= steps_s - 0.002
    assert engine.counters.steps == 40


async def test_many_requests_at_once_are_all_answered_exactly(start_engine, client):
    """Sixty streams and plain requests over a cache that must preempt: every one gets its tokens."""
    model = EngineModel(speed=100.0, max_num_seqs=8, kv_capacity_tokens=160, kv_block_tokens=16, max_model_len=96)
    engine = await start_engine(batching=model)

    async def ask(number: int) -> int:
        body = chat(20 + number, stream=number % 2 == 0)
        async with client.post(engine.url + CHAT, json=body) as response:
            if number % 2:
                return (await response.json())["usage"]["completion_tokens"]
            return (await response.read()).count(b'"delta":{"content":')

    counts = await asyncio.gather(*(ask(number) for number in range(60)))
    assert counts == [20 + number for number in range(60)]
    assert engine.steps.batcher.preemptions > 0
    assert engine.steps.batcher.kv_usage == 0.0


def test_every_setting_says_what_it_means():
    """The command line is made of these descriptions and ranges."""
    for struct in (EngineConfig, EngineModel):
        for field in msgspec.inspect.type_info(struct).fields:
            if field.name != "batching":
                assert field.type.extra_json_schema["description"], field.name


def test_an_engine_says_what_it_is():
    """Its repr holds the URL and the fault."""
    assert repr(SimulatedEngine(EngineConfig(port=8100))) == "<SimulatedEngine http://127.0.0.1:8100 fault=None>"
