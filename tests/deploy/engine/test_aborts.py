"""A client that leaves takes its work with it, at once and in every mode."""

import asyncio

import pytest

from deploy.engine.batching import EngineModel

from .conftest import FROZEN, Watch, chat

CHAT = "/v1/chat/completions"
ONE_SLOT = EngineModel(max_num_seqs=1, speed=0.001, max_model_len=2048)


async def leave(request: asyncio.Task[object]) -> None:
    """Close a request's connection from the client's side."""
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(stream=True)),
        (CHAT, chat()),
        (CHAT, chat(n=3)),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
async def test_a_client_that_leaves_frees_its_sequences(path, body, start_engine, client):
    """Given a request in its first step, when its client closes the connection, then nothing runs and nothing waits."""
    engine = await start_engine(batching=FROZEN)
    watch = Watch(engine)

    async def ask() -> None:
        async with client.post(engine.url + path, json=body) as response:
            await response.read()

    request = asyncio.create_task(ask())
    await watch.submitted.wait()
    assert engine.steps.batcher.running + engine.steps.batcher.waiting > 0
    await leave(request)
    async with asyncio.timeout(5):
        await watch.dropped.wait()
    batcher = engine.steps.batcher
    assert (batcher.running, batcher.waiting, batcher.kv_usage) == (0, 0, 0.0)
    assert engine.counters.aborted == 1


async def test_a_client_that_leaves_the_queue_was_never_served(start_engine, client):
    """Given one slot in use, when the waiting client leaves, then the running one stays."""
    engine = await start_engine(batching=ONE_SLOT)
    async with client.post(engine.url + CHAT, json=chat(stream=True)):
        watch = Watch(engine)
        waiting = asyncio.create_task(client.post(engine.url + CHAT, json=chat()))
        await watch.submitted.wait()
        await leave(waiting)
        async with asyncio.timeout(5):
            await watch.dropped.wait()
        assert engine.steps.batcher.running + engine.steps.batcher.waiting == 1


async def test_a_client_that_leaves_in_mid_stream_gets_no_more_tokens(start_engine, client):
    """Given a stream with one token, when its client leaves, then the engine stops long before the last token."""
    engine = await start_engine()
    watch = Watch(engine)
    async with client.post(engine.url + CHAT, json=chat(2000, stream=True)) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
        async with asyncio.timeout(5):
            await watch.dropped.wait()
    assert engine.steps.batcher.running == 0
    assert engine.counters.generation_tokens < 2000


async def test_a_finished_request_is_no_abort(start_engine, client):
    """A request that was answered in full leaves the abort counter alone."""
    engine = await start_engine()
    async with client.post(engine.url + CHAT, json=chat(n=2)) as response:
        await response.read()
    assert engine.counters.aborted == 0
    assert engine.counters.succeeded["length"] == 2
