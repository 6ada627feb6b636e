"""What a relay takes: memory idle and under load, commands on the bus a request, bytes of a record."""

import asyncio
from collections import Counter
from typing import Any

import psutil
import redis.asyncio as redis_asyncio

from tests.bench.figures import Aim, Figure
from tests.bench.load import Load, load_on, request_bytes
from tests.bench.plan import Effort
from tests.bench.stand import Stand
from tests.bench.streams import PACE_MS, STREAMS

MIB = 1024 * 1024

RECORD_KEY = "forebay:{default}:pressure:bench"


async def memory(stand: Stand, effort: Effort) -> list[Figure]:
    """RSS and USS of every hop: before the first request, then the most during plain requests and 64 streams."""
    hops = {
        "proxy": (stand.forebay.proxy, stand.yardstick.hops[0]),
        "worker": (stand.forebay.worker, stand.yardstick.hops[1]),
    }
    idle = {name: [_mib(process) for process in pair] for name, pair in hops.items()}
    with load_on(stand.yardstick.url) as bare, load_on(stand.forebay.url) as ours:
        loaded = {name: [(0.0, 0.0), (0.0, 0.0)] for name in hops}
        for which, load in enumerate((ours, bare)):
            for under in (_plain(load, effort), _streams(load, effort)):
                task = asyncio.create_task(under)
                while not task.done():
                    for name, pair in hops.items():
                        loaded[name][which] = max(loaded[name][which], _mib(pair[which]))
                    await asyncio.wait((task,), timeout=effort.seconds / 4)
                await task
    figures = []
    for name in hops:
        for state, seen in (("idle", idle[name]), ("under load", loaded[name])):
            for index, kind in enumerate(("RSS", "USS")):
                figures.append(
                    Figure(
                        part="memory",
                        name=f"{name} {state}, {kind}",
                        unit="MiB",
                        ours=[seen[0][index]],
                        yardstick=[seen[1][index]],
                    )
                )
    return figures


async def _plain(load: Load, effort: Effort) -> None:
    await load.run(STREAMS, request_bytes(is_stream=False), effort.seconds)


async def _streams(load: Load, effort: Effort) -> None:
    chunks = int(effort.stream_seconds * 1000 / PACE_MS)
    await load.run_each_once(STREAMS, request_bytes(is_stream=True, chunks=chunks, pace_ms=PACE_MS))


def _mib(process: psutil.Process) -> tuple[float, float]:
    full = process.memory_full_info()
    return full.rss / MIB, full.uss / MIB


async def bus(stand: Stand, effort: Effort) -> list[Figure]:
    """Round trips a request of the replica and of the worker, commands inside scripts, and the record's size."""
    client = redis_asyncio.Redis.from_url(stand.bus.url)
    figures: list[Figure] = []
    sizes: list[int] = []
    try:
        with load_on(stand.forebay.url) as load:
            await load.run(64, request_bytes(is_stream=False), 0.5)
            idle_per_s = await _idle_calls_per_s(client, effort.seconds)
            for concurrency in (1, 16):
                seen: dict[str, list[float]] = {name: [] for name in _COUNTED}
                for _ in range(effort.repeat):
                    before, answered = await _commands(client), load.answered
                    run = asyncio.create_task(load.run(concurrency, request_bytes(is_stream=False), effort.seconds))
                    await asyncio.sleep(effort.seconds / 2)
                    sizes.append(await client.hstrlen(RECORD_KEY, "record"))
                    after_s = await run
                    after, requests = await _commands(client), load.answered - answered
                    after["replica"] -= round(idle_per_s * after_s)
                    for name, kept in seen.items():
                        kept.append((after[name] - before[name]) / requests)
                figures += [
                    Figure(part="bus", name=f"{label}, {concurrency} at once", unit="", ours=seen[name], aim=aim)
                    for name, (label, aim) in _COUNTED.items()
                ]
    finally:
        await client.aclose()
    record = Figure(part="bus", name="record under this load", unit="bytes", ours=sizes, aim=Aim(128, of="value"))
    idle = Figure(part="bus", name="readings of an idle replica, not counted above", unit="1/s", ours=[idle_per_s])
    return [*figures, idle, record]


async def _idle_calls_per_s(client: redis_asyncio.Redis, seconds: float) -> float:
    """How often a replica without traffic reads: its housekeeping, which no request causes."""
    before = await _commands(client)
    await asyncio.sleep(max(1.0, seconds))
    after = await _commands(client)
    return (after["replica"] - before["replica"]) / max(1.0, seconds)


_COUNTED = {
    "replica": ("round trips a request, replica", Aim(2, of="value")),
    "worker": ("round trips a request, worker's publishes", None),
    "inside": ("commands inside all these scripts a request", None),
}

#: What a client sends to run a script, one round trip each; everything else below runs inside scripts.
_CALLS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_script|load")

#: Commands of this very measurement and of new connections.
_OWN = ("client|", "info", "hstrlen", "hello", "config", "ping", "hget", "command")


async def _commands(client: redis_asyncio.Redis) -> Counter[str]:
    """Commands so far: a worker's publishes by the record's own sequence, all other calls are the replica's."""
    stats: dict[str, Any] = await client.info("commandstats")
    calls = sum(row["calls"] for name, row in stats.items() if name in _CALLS)
    published = int(await client.hget(RECORD_KEY, "sequence") or 0)
    own = tuple(f"cmdstat_{name}" for name in _OWN)
    inside = sum(row["calls"] for name, row in stats.items() if name not in _CALLS and not name.startswith(own))
    return Counter(replica=calls - published, worker=published, inside=inside)
