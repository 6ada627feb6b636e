"""Proxy and worker before a real vLLM and a real llama.cpp server, with the official client.

The tests of a kind share one engine, in the order of this file; the last one kills it.
"""

import asyncio
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import openai
import pytest

from tests.engines.real import KINDS, RealEngine
from tests.processes.fleet import Engine, Fleet, fetch, until

pytestmark = [pytest.mark.processes, pytest.mark.engines]

PATIENCE_S = 300.0
"""A real engine on a busy CPU is slow; nothing here measures how fast."""

AT_ONCE = 64
TOKENS = 48
PROMPTS = ("Tell me of turbines.", "What is a forebay? " * 12, "αβγ 水 🌊, and numbers: 1 2 3.")


class Stand:
    """An engine, and a gateway before it."""

    def __init__(self, engine: RealEngine, fleet: Fleet) -> None:
        self.engine = engine
        self.fleet = fleet
        self.model = engine.model
        self.direct = f"{engine.url}/v1"
        self.through = f"{fleet.replicas[0].url}/v1"

    def signals(self) -> dict[str, Any]:
        """What the replica knows of the instance."""
        return self.fleet.replicas[0].loads()["real"]["signals"]

    def wait_until_idle(self) -> None:
        """Wait until nothing runs on the engine, and nothing is counted anywhere."""
        until(lambda: self.engine.running() == 0, "the engine is idle", limit_s=PATIENCE_S)
        self.fleet.wait_until_idle()


@pytest.fixture(scope="module", params=KINDS)
def stand(request, tmp_path_factory) -> Iterator[Stand]:
    """Start one engine of each kind that is installed, with a worker and a replica before it."""
    kind = KINDS[request.param]
    folder = tmp_path_factory.mktemp(kind.name)
    with RealEngine(kind, folder) as engine, Fleet(folder) as fleet:
        fleet.start_worker("real", Engine(engine.url), "--slots", str(kind.worker_slots))
        fleet.start_replica("--tries", "1")
        fleet.wait()
        yield Stand(engine, fleet)


def client(url: str) -> openai.OpenAI:
    """The official client, without its own retries."""
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)


def async_client(url: str) -> openai.AsyncOpenAI:
    """The official asynchronous client."""
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)


def chat(model: str, prompt: str = PROMPTS[0], **more: Any) -> dict[str, Any]:
    """A chat whose answer is the same each time."""
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "max_tokens": TOKENS, "temperature": 0, "seed": 7, **more}


def essence(chunks: list[Any]) -> dict[str, Any]:
    """A stream without ids and times, and without where it was cut: an event may hold several tokens.

    `system_fingerprint` counts as an id: vLLM writes it into the last event, which is the usage event where one is
    asked for, and so does not come to a client in whose name the worker has asked.
    """
    dumped = [chunk.model_dump(exclude_unset=True) for chunk in chunks]
    choices = [choice for chunk in dumped for choice in chunk["choices"]]
    return {
        "text": "".join(choice["delta"].get("content") or "" for choice in choices),
        "roles": {choice["delta"]["role"] for choice in choices if choice["delta"].get("role")},
        "ends": [choice["finish_reason"] for choice in choices if choice.get("finish_reason")],
        "models": {chunk["model"] for chunk in dumped},
        "objects": {chunk["object"] for chunk in dumped},
        "fields": {name for chunk in dumped for name in chunk} - {"system_fingerprint"},
        "usage": [chunk["usage"]["completion_tokens"] for chunk in dumped if chunk.get("usage")],
    }


def test_the_engine_is_recognised_and_its_load_is_read(stand):
    """Its kind, its models and zeros that were measured."""
    load = until(
        lambda: (found := stand.fleet.replicas[0].loads()["real"])["signals"]["engine_running"]["value"] == 0 and found,
        "an idle engine says that it runs nothing",
    )
    assert stand.model in load["models"]
    assert load["signals"]["engine_waiting"]["value"] == 0
    assert (load["signals"]["kv_usage"]["value"] is None) == (stand.engine.kind.name == "llamacpp")
    assert f"engine recognised as {stand.engine.kind.name}" in stand.fleet.workers["real"].text


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "usage"])
def test_a_stream_is_that_of_the_engine_but_for_ids(stand, prompt, more):
    """Its text, its reason and its usage, which is there only where the client asked for it."""
    request = chat(stand.model, prompt, stream=True, **more)
    with client(stand.direct) as direct, client(stand.through) as through:
        expected = essence(list(direct.chat.completions.create(**request)))
        assert essence(list(through.chat.completions.create(**request))) == expected
    assert len(expected["usage"]) == len(more)


def test_a_plain_answer_is_that_of_the_engine_but_for_ids(stand):
    """The text, the reason and the usage."""
    request = chat(stand.model)
    with client(stand.direct) as direct, client(stand.through) as through:
        answers = [each.chat.completions.create(**request) for each in (direct, through)]
    first, second = ([a.choices[0].message.content, a.choices[0].finish_reason, a.model] for a in answers)
    assert first == second
    assert answers[0].usage.completion_tokens == answers[1].usage.completion_tokens


BAD = {
    "negative": {"max_tokens": -5},
    "no messages": {"messages": None},
    "messages are text": {"messages": "hello"},
    "role": {"messages": [{"role": 7, "content": "x"}]},
    "temperature": {"temperature": "warm"},
    "too long": {"messages": [{"role": "user", "content": "long " * 20_000}]},
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_an_error_of_the_engine_passes_unchanged(stand, what, is_stream):
    """Status and every byte, whatever shape the engine gives them."""
    body = {**chat(stand.model), "stream": is_stream, **BAD[what]}
    expected = posted(f"{stand.direct}/chat/completions", body)
    if expected[0] < 400:
        pytest.skip(f"{stand.engine.kind.name} takes this")
    assert posted(f"{stand.through}/chat/completions", body) == expected


def posted(url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=msgspec.json.encode(body), headers=headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
async def test_an_abort_of_the_client_is_seen_by_the_engine(stand, is_stream):
    """The engine runs long answers, their clients leave, and the engine runs nothing: by its own gauges."""
    async with async_client(stand.through) as through:
        request = chat(stand.model, max_tokens=1_800, stream=is_stream)
        asking = [asyncio.create_task(read_all(through, request)) for _ in range(AT_ONCE)]
        await asyncio.to_thread(until, lambda: stand.engine.running(), "the engine runs them", limit_s=PATIENCE_S)
        for each in asking:
            each.cancel()
        left_s = time.monotonic()
        ends = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(end, asyncio.CancelledError) for end in ends) > AT_ONCE / 2
    await asyncio.to_thread(stand.wait_until_idle)
    print(f"\n{stand.engine.kind.name}: idle {time.monotonic() - left_s:.2f} s after {AT_ONCE} clients left")


async def read_all(one: openai.AsyncOpenAI, request: dict[str, Any]) -> list[Any]:
    """The chunks of a stream, or the one answer; closed whatever happens."""
    answer = await one.chat.completions.create(**request)
    if not request.get("stream"):
        return [answer]
    async with answer:
        return [chunk async for chunk in answer]


async def test_sixty_four_at_once_are_all_answered_under_pressure(stand):
    """More than the engine's slots and its KV cache hold: every stream has its end, and then every count is 0."""
    peak: dict[str, float] = {}
    done = asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            signals = await asyncio.to_thread(stand.signals)
            for name in ("engine_running", "engine_waiting", "kv_usage", "inflight", "ready_queue_depth"):
                peak[name] = max(peak.get(name, 0), signals[name]["value"] or 0)
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    started_s = time.monotonic()
    async with async_client(stand.through) as through:
        requests = [
            chat(stand.model, f"{number}: " + PROMPTS[1], stream=True, max_tokens=TOKENS + number)
            for number in range(AT_ONCE)
        ]
        streams = await asyncio.gather(*(read_all(through, request) for request in requests))
    took_s = time.monotonic() - started_s
    done.set()
    await looking
    ends = [essence(stream)["ends"] for stream in streams]
    assert all(end in (["length"], ["stop"]) for end in ends)
    assert peak["inflight"] > stand.engine.kind.worker_slots / 2
    await asyncio.to_thread(stand.wait_until_idle)
    print(f"\n{stand.engine.kind.name}: {AT_ONCE} at once in {took_s:.1f} s, at most {peak}")


def test_the_predicted_time_to_first_token_is_near_the_real_one(stand):
    """What the worker predicted before dispatch against what came is printed; that it predicts at all is tested."""
    with client(stand.through) as through:
        for number in range(12):
            list(through.chat.completions.create(**chat(stand.model, f"{number} " * 40, stream=True, max_tokens=8)))
    page = fetch(f"{stand.fleet.workers['real'].admin_url}/debug/predictions")[1]
    made = msgspec.json.decode(page)["real"]
    quiet, crowded = made[-12:], made[-12 - AT_ONCE : -12]
    assert len(quiet) == 12
    for name, some in (("one at a time", quiet), (f"{AT_ONCE} at once", crowded)):
        real = [each["real_ttft_s"] for each in some]
        errors = [abs(each["predicted_ttft_s"] - each["real_ttft_s"]) for each in some]
        print(
            f"\n{stand.engine.kind.name}, {name}: TTFT real median {statistics.median(real) * 1000:.0f} ms, "
            f"predicted median {statistics.median(each['predicted_ttft_s'] for each in some) * 1000:.0f} ms, "
            f"median error {statistics.median(errors) * 1000:.0f} ms",
            end="",
        )
    print()


async def test_an_engine_killed_in_mid_stream_ends_its_streams_with_an_error(stand):
    """The client sees an error and no forged finish; nothing stays counted, and the next request has its own error."""
    async with async_client(stand.through) as through:
        stream = await through.chat.completions.create(**chat(stand.model, max_tokens=1_800, stream=True))
        choices = (choice async for chunk in stream for choice in chunk.choices)
        async for choice in choices:
            if choice.delta.content:
                break
        stand.engine.kill_core()
        ends: list[str] = []
        with pytest.raises(openai.APIError) as caught:
            await collect_ends(choices, ends)
        assert ends == []
        print(f"\n{stand.engine.kind.name} killed in mid-stream: {type(caught.value).__name__}: {caught.value}")
        stand.engine.kill()
        with pytest.raises(openai.APIStatusError) as refused:
            await through.chat.completions.create(**chat(stand.model))
        assert refused.value.status_code in {502, 503}
    worker, replica = stand.fleet.workers["real"], stand.fleet.replicas[0]
    until(lambda: worker.inflight() == 0 and replica.metric("forebay_inflight") == 0, "nothing stays counted")


async def collect_ends(choices: AsyncIterator[Any], ends: list[str]) -> None:
    """The reasons with which answers finish, into a list that outlives a fault."""
    async for choice in choices:
        if choice.finish_reason:
            ends.append(choice.finish_reason)  # noqa: PERF401 - extending would lose them with the fault
