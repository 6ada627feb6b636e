import asyncio
import signal
import time

import aiohttp
import pytest

from tests.processes.fleet import Fleet, Replica, fetch, until

pytestmark = pytest.mark.processes

PATH = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
TTL_MS = 900
SLACK_S = 1.0
"""Beside the TTL: the age of the record when its worker ended, one look at the bus, and a busy machine."""


def chat(max_tokens: int) -> dict[str, object]:
    """Give a stream of so many tokens."""
    messages = [{"role": "user", "content": "Tell me of the sea"}]
    return {"model": "sim", "messages": messages, "max_tokens": max_tokens, "stream": True}


@pytest.fixture
def fleet(start_own_fleet) -> Fleet:
    """Give two instances with two slots each, and two replicas that share requests out by what is under way."""
    worker = ["--slots", "2", "--ttl-ms", str(TTL_MS)]
    return start_own_fleet(worker=worker, replica=["--strategy", "least_load"])


async def opened(http: aiohttp.ClientSession, url: str, max_tokens: int) -> aiohttp.ClientResponse:
    """Give a stream that has begun."""
    return await http.post(f"{url}{PATH}", json=chat(max_tokens))


def instance_of(answer: aiohttp.ClientResponse) -> str:
    """Give the instance that answers."""
    return answer.headers["x-forebay-instance"]


async def rest_of(answer: aiohttp.ClientResponse) -> bytes:
    """Read a stream to its end."""
    async with answer:
        return await answer.read()


def values_of(replica: Replica, instance: str) -> list[object]:
    """Give all signals of an instance."""
    signals = replica.loads()[instance]["signals"]
    return [each["value"] for each in signals.values()]


async def watched(function, *arguments):
    """Run something that waits, beside the streams."""
    return await asyncio.to_thread(function, *arguments)


async def test_a_killed_worker_is_unknown_and_what_waited_there_is_answered_elsewhere(http, fleet):
    """After SIGKILL its signals are null on both replicas within a TTL, its queue goes elsewhere, and it comes back."""
    streams = [await opened(http, fleet.replicas[number % 2].url, 400) for number in range(4)]
    assert sorted(map(instance_of, streams)) == ["i1", "i1", "i2", "i2"]
    queued = [asyncio.create_task(opened(http, fleet.replicas[number % 2].url, 4)) for number in range(8)]
    await watched(until, lambda: sum(w.inflight() for w in fleet.workers.values()) == 12, "all have been accepted")
    assert fleet.workers["i1"].inflight() > 2, "nothing waits there"
    victim = fleet.workers["i1"]
    victim.kill()
    killed_s = time.monotonic()

    for replica in fleet.replicas:
        left_s = killed_s + TTL_MS / 1000 + SLACK_S - time.monotonic()
        await asyncio.to_thread(
            until, lambda r=replica: set(values_of(r, "i1")) == {None}, "all signals are null", limit_s=left_s
        )
        load = replica.loads()["i1"]
        assert load["state"] == "unknown"
        assert load["reason"] in {"expired", "missing"}  # by the reader, by the bus
        assert None not in {replica.loads()["i2"]["signals"][name]["value"] for name in ("inflight", "queued_tokens")}

    answers = [await task for task in queued]
    assert [instance_of(answer) for answer in answers] == ["i2"] * 8
    assert all([(await rest_of(answer)).endswith(DONE) for answer in answers])
    for stream in streams:
        content = await rest_of(stream)
        if instance_of(stream) == "i2":
            assert content.endswith(DONE)
        else:
            assert content.split(b"\n\n")[-2].startswith(b'data: {"error":')
            assert DONE not in content
            assert b'"finish_reason":"' not in content

    fleet.start_worker("i1", victim.engine, "--slots", "2", "--ttl-ms", str(TTL_MS))
    await watched(fleet.wait)

    async def serves_again() -> None:
        answered = set()
        while answered != {"i1", "i2"}:
            stream = await opened(http, fleet.replicas[0].url, 2)
            answered.add(instance_of(stream))
            assert (await rest_of(stream)).endswith(DONE)

    await asyncio.wait_for(serves_again(), 20)
    await watched(fleet.wait_until_idle)


async def test_a_worker_told_to_end_finishes_what_runs_and_gets_nothing_new(http, fleet):
    """After SIGTERM it publishes draining, finishes its streams, is not chosen any more, and ends with status 0."""
    streams = [await opened(http, fleet.replicas[0].url, 150) for _ in range(2)]
    assert sorted(map(instance_of, streams)) == ["i1", "i2"]
    leaving = fleet.workers["i2"]
    leaving.signal(signal.SIGTERM)
    for replica in fleet.replicas:
        await watched(until, lambda r=replica: r.loads()["i2"]["state"] == "draining", f"{replica.name} sees it drain")
    for replica in fleet.replicas:
        for _ in range(3):
            answer = await opened(http, replica.url, 2)
            assert instance_of(answer) == "i1"
            assert (await rest_of(answer)).endswith(DONE)
    assert leaving.process.poll() is None, "it ended before its stream"
    for stream in streams:
        assert (await rest_of(stream)).endswith(DONE)
    assert await watched(leaving.status) == 0
    for replica in fleet.replicas:
        await watched(until, lambda r=replica: "i2" not in r.loads(), f"{replica.name} forgets it")
    assert "Traceback" not in leaving.text


async def test_of_two_workers_for_one_instance_the_newer_wins(http, fleet):
    """The older says that it was superseded and drains: its stream ends well, new requests go to the newer."""
    older = fleet.workers["i1"]
    streams = [await opened(http, fleet.replicas[0].url, 200) for _ in range(2)]
    assert sorted(map(instance_of, streams)) == ["i1", "i2"]
    newer = fleet.start_worker("i1", older.engine, "--slots", "2", "--ttl-ms", str(TTL_MS))
    await watched(older.said, "a newer worker .* owns it; draining")
    for replica in fleet.replicas:
        await watched(
            until, lambda r=replica: r.loads()["i1"]["worker_url"] == newer.url, f"{replica.name} dials the newer"
        )
    status, body = await watched(lambda: fetch(f"{older.url}{PATH}", body=chat(2)))
    assert status == 503
    assert b"instance_draining" in body
    for stream in streams:
        assert (await rest_of(stream)).endswith(DONE)
    answers = [await opened(http, fleet.replicas[number % 2].url, 2) for number in range(8)]
    assert {instance_of(answer) for answer in answers} == {"i1", "i2"}
    assert all([(await rest_of(answer)).endswith(DONE) for answer in answers])
    await watched(fleet.wait_until_idle)
    assert b'"i1": "draining"' in fetch(f"{older.admin_url}/health")[1]
    older.signal(signal.SIGTERM)
    assert await watched(older.status) == 0
    await watched(fleet.wait)  # the older one's leaving took nothing of the newer one's away


async def test_a_replica_told_to_end_finishes_what_runs(http, fleet):
    """After SIGTERM a replica accepts no connection, answers once more on those it has, ends with its last stream."""
    leaving = fleet.replicas.pop()
    stream = await opened(http, leaving.url, 150)
    async with aiohttp.ClientSession() as keeping:
        await rest_of(await opened(keeping, leaving.url, 2))
        leaving.signal(signal.SIGTERM)
        await watched(until, lambda: fetch(f"{leaving.admin_url}/ready")[0] == 503, "it says that it is not ready")
        last = await opened(keeping, leaving.url, 2)
        assert last.headers["connection"] == "close"
        assert (await rest_of(last)).endswith(DONE)
        await watched(until, lambda: fetch(f"{leaving.url}/health")[0] == 0, "it accepts nothing")
        assert leaving.process.poll() is None, "it ended before its stream"
        assert (await rest_of(stream)).endswith(DONE)
        assert await watched(leaving.status) == 0
    assert "Traceback" not in leaving.text
    assert (await rest_of(await opened(http, fleet.replicas[0].url, 2))).endswith(DONE)
    await watched(fleet.wait_until_idle)
