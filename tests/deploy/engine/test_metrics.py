"""The metrics page has vLLM's names and labels, and says what the engine is doing."""

import re

from prometheus_client.parser import text_string_to_metric_families

from deploy.engine.batching import EngineModel

from .conftest import FROZEN, RECORDINGS, chat

CHAT = "/v1/chat/completions"


def samples(page: str) -> dict[str, float]:
    """Every sample by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def page_of(engine, client) -> str:
    """The page as it is now."""
    async with client.get(engine.url + "/metrics") as response:
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        return await response.text()


async def test_names_and_labels_are_those_of_vllm(start_engine, client):
    """Every recorded sample that a gateway reads is there under the same labels (the cache's with fewer of them)."""
    engine = await start_engine()
    recorded = (RECORDINGS / "vllm-0.32.0-metrics.txt").read_text()
    told = samples(await page_of(engine, client))
    expected = {name for name in samples(recorded) if "cache_config_info" not in name}
    assert len(expected) == 15
    assert expected <= set(told)
    config = next(name for name in told if "cache_config_info" in name)
    labels = set(re.findall(r"'(\w+)', '", config))
    assert {"block_size", "num_gpu_blocks", "kv_cache_size_tokens"} <= labels
    assert labels <= set(re.findall(r'(\w+)="', recorded))


async def test_gauges_show_what_runs_and_what_waits(start_engine, client):
    """Given one slot and three streams in their first step, then one runs, two wait and blocks are in use."""
    engine = await start_engine(batching=EngineModel(max_num_seqs=1, speed=0.001, max_model_len=2048))
    url = engine.url + CHAT
    body = chat(stream=True)
    async with client.post(url, json=body), client.post(url, json=body), client.post(url, json=body):
        told = samples(await page_of(engine, client))
    labels = "[('engine', '0'), ('model_name', 'tiny')]"
    assert told[f"vllm:num_requests_running{labels}"] == 1.0
    assert told[f"vllm:num_requests_waiting{labels}"] == 2.0
    assert 0 < told[f"vllm:kv_cache_usage_perc{labels}"] < 1


async def test_counters_count_tokens_and_ends(start_engine, client):
    """Two prompt tokens and five generated ones, ended by the limit."""
    engine = await start_engine()
    async with client.post(engine.url + CHAT, json=chat(5)) as response:
        await response.read()
    told = samples(await page_of(engine, client))
    labels = "[('engine', '0'), ('model_name', 'tiny')]"
    assert told[f"vllm:prompt_tokens_total{labels}"] == 2.0
    assert told[f"vllm:generation_tokens_total{labels}"] == 5.0
    ended = "[('engine', '0'), ('finished_reason', 'length'), ('model_name', 'tiny')]"
    assert told[f"vllm:request_success_total{ended}"] == 1.0
    assert told[f"vllm:request_queue_time_seconds_count{labels}"] == 1.0


async def test_load_counts_the_requests_under_way(start_engine, client):
    """/load rises with a stream, as vLLM's does."""
    engine = await start_engine(batching=FROZEN)
    async with client.post(engine.url + CHAT, json=chat(stream=True)), client.get(engine.url + "/load") as response:
        assert await response.json() == {"server_load": 1}


async def test_a_models_name_is_escaped(start_engine, client):
    """Quotes and backslashes in a name leave the page readable."""
    engine = await start_engine(models=('a"b\\c',))
    assert any('a"b\\\\c' in name for name in samples(await page_of(engine, client)))
