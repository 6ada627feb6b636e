"""What a selection costs as the pool grows: `python -m tests.bench.scale`.

Four replicas, each a process of its own with its own Reader, Reservations and Selection, choose 500 times a second in
all, by `predicted_ttft`. One more process publishes for every instance at its heartbeat, so that records change as they
do in service. What a replica has reserved it gives back 50 ms later, in place of the worker's settlement.

The first table is what such a fleet costs; the second takes one selection apart, in one process that does nothing else.
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import redis.asyncio as redis_asyncio
import uvloop

from bus.client import connect
from bus.in_transit import MOST_OFFERS, OLDEST_VIEW_US
from bus.keys import instances_key, pressure_key, reserved_key
from bus.link import Link
from bus.reader import Reader
from bus.record import PressureRecord, encode_record
from bus.registration import REMEMBERED_MS, Registration, encode_registration
from bus.reservations import Reservations
from bus.scripts import Script, lua_source
from deploy.embedded import EmbeddedServer
from proxy.candidates import Candidate
from proxy.config import ProxyConfig
from proxy.facts import read_facts
from proxy.rotation import Rotation
from proxy.selection import Selected, Selection
from proxy.strategies import STRATEGIES
from proxy.strategies.base import offers, rank

POOL = "default"
TTL_MS = 1500
SETTLED_AFTER_S = 0.05
BODY = msgspec.json.encode({"model": "sim", "prompt": "hay " * 1000, "max_tokens": 128})
FACTS = read_facts("/v1/completions", BODY)


class Cost(msgspec.Struct):
    """What one replica saw."""

    latencies_us: list[float]
    cpu_s: float = 0.0
    late_s: float = 0.0
    """By how much the last choice ended too late: beyond some milliseconds the machine was too small for the load."""
    alone: int = 0
    """Choices that the bus did not make: the answer came too late, or not."""


def record_of(number: int, epoch: int, sequence: int) -> PressureRecord:
    """Some record of a busy instance; no two in a row are equal."""
    load = (number * 7 + sequence) % 23
    return PressureRecord(
        epoch=epoch,
        sequence=sequence,
        prepare_queue_depth=0,
        active_prepare=0,
        ready_queue_depth=load // 8,
        active_ready=0,
        inflight=load,
        pending_prefill_count=load // 4,
        active_decode_count=load,
        next_slot_ready_in_ms=17 * load,
        prefill_free_in_ms=23 * load,
        predicted_prefill_backlog_ms=23 * load,
        predicted_decode_backlog_ms=170 * load,
        predicted_total_backlog_ms=193 * load,
        predicted_wait_ms=23 * load,
        queued_tokens=311 * load,
        kv_usage=load / 40,
        engine_running=load,
        engine_waiting=0,
        kv_capacity_tokens=200_000,
        prefill_tokens_per_s=7900.5 + number % 17,
        prefill_fixed_ms=8.0,
        decode_step_ms=12.5,
        decode_slope_ms=0.25,
        qps_1m=3.25,
        mean_output_tokens=131.5,
    )


class Publishers:
    """The queue workers of all instances, in one pipeline."""

    def __init__(self, client: redis_asyncio.Redis, instances: int) -> None:
        self._client = client
        self._names = [f"i{number}" for number in range(instances)]
        self._epochs: list[int] = []
        self._sequence = 0

    async def register(self) -> None:
        """Announce every instance for an hour."""
        script = Script(self._client, "register")
        for name in self._names:
            registration = Registration(
                worker_url=f"http://10.0.0.1:{name}", engine_url="http://10.0.0.1:1", models=("sim",), ttl_ms=TTL_MS
            )
            args = (name, 0, 3_600_000, REMEMBERED_MS, encode_registration(registration))
            self._epochs.append(int((await script((instances_key(POOL), pressure_key(POOL, name)), args))[1]))

    async def publish_all(self) -> None:
        """Publish one record of each instance."""
        self._sequence += 1
        sha = await self._client.script_load(lua_source("publish"))
        async with self._client.pipeline(transaction=False) as pipe:
            for number, name in enumerate(self._names):
                record = encode_record(record_of(number, self._epochs[number], self._sequence))
                keys = (pressure_key(POOL, name), instances_key(POOL), reserved_key(POOL, name))
                pipe.evalsha(sha, 3, *keys, record, self._epochs[number], self._sequence, TTL_MS, name)
                if number % 50 == 49:
                    await pipe.execute()
            await pipe.execute()


def publish(url: str, instances: int, is_over: "multiprocessing.synchronize.Event", is_ready) -> None:  # type: ignore[no-untyped-def]
    """Process of the workers: every instance at its heartbeat."""

    async def main() -> None:
        publishers = Publishers(redis_asyncio.Redis.from_url(url), instances)
        await publishers.register()
        while not is_over.is_set():
            began = time.monotonic()
            await publishers.publish_all()
            is_ready.set()
            await asyncio.sleep(max(0.0, TTL_MS / 3000 - (time.monotonic() - began)))

    uvloop.run(main())


def replica_of(client: Link, name: str) -> Selection:
    """One replica's selection."""
    strategy = STRATEGIES["predicted_ttft"](ProxyConfig())
    readers, reservations = [Reader(client, POOL, budget_s=1.0)], [Reservations(client, POOL)]
    return Selection(readers, reservations, strategy, rotation=Rotation.of_replica(name))


def choose(url: str, name: str, rate: float, seconds: float, results) -> None:  # type: ignore[no-untyped-def]
    """Process of one replica: `rate` choices a second, each at its time whether or not the last one has ended."""

    async def main() -> Cost:
        selection = replica_of(connect(url, timeout_s=1.0), name)
        for _ in range(20):
            selection.give_back(await selection.choose("warm", FACTS))
        loop, cost = asyncio.get_running_loop(), Cost([])
        choices, ended, all_ended = int(rate * seconds), 0, asyncio.Event()

        def end(selected: Selected) -> None:
            nonlocal ended
            selection.release(selected)
            selection.give_back(selected)
            ended += 1
            if ended == choices:
                all_ended.set()

        async def one() -> None:
            began = time.perf_counter()
            selected = await selection.choose("x", FACTS)
            cost.latencies_us.append((time.perf_counter() - began) * 1e6)
            cost.alone += selected.decision.choice.reserved is None
            loop.call_later(SETTLED_AFTER_S, end, selected)

        cpu_s, at = time.process_time(), loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(choices):
                await asyncio.sleep(max(0.0, at + number / rate - loop.time()))
                group.create_task(one())
        cost.cpu_s, cost.late_s = time.process_time() - cpu_s, loop.time() - at - seconds
        await all_ended.wait()
        await selection.reservations[POOL].close()
        return cost

    results.put(msgspec.msgpack.encode(uvloop.run(main())))


async def server_cost(client: redis_asyncio.Redis) -> tuple[float, int, int]:
    """CPU seconds of the server, and bytes that it has sent and received."""
    cpu, stats = await client.info("cpu"), await client.info("stats")
    used_s = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
    return used_s, stats["total_net_output_bytes"], stats["total_net_input_bytes"]


def measure_fleet(url: str, instances: int, *, replicas: int, rate: float, seconds: float) -> str:
    """One row of the first table."""
    spawn = multiprocessing.get_context("spawn")
    is_over, is_ready, results = spawn.Event(), spawn.Event(), spawn.Queue()
    workers = spawn.Process(target=publish, args=(url, instances, is_over, is_ready))
    workers.start()
    is_ready.wait(60)

    async def cost() -> tuple[float, int, int]:
        client = redis_asyncio.Redis.from_url(url)
        try:
            return await server_cost(client)
        finally:
            await client.aclose()

    before, began = asyncio.run(cost()), time.monotonic()
    choosers = [
        spawn.Process(target=choose, args=(url, f"replica-{number}", rate / replicas, seconds, results))
        for number in range(replicas)
    ]
    for each in choosers:
        each.start()
    costs = [msgspec.msgpack.decode(results.get(timeout=60 + seconds), type=Cost) for _ in choosers]
    wall_s, after = time.monotonic() - began, asyncio.run(cost())
    is_over.set()
    for each in (*choosers, workers):
        each.join()
    latencies = sorted(latency for each in costs for latency in each.latencies_us)
    cuts = statistics.quantiles(latencies, n=100)
    cpu_us = sum(each.cpu_s for each in costs) / len(latencies) * 1e6
    used_s, sent, received = (now - then for now, then in zip(after, before, strict=True))
    alone = sum(each.alone for each in costs) / len(latencies)
    return (
        f"{instances:>9} {cuts[49]:>9.0f} {cuts[98]:>9.0f} {cpu_us:>12.0f} {used_s / wall_s:>9.1%}"
        f" {sent / wall_s / 1e6:>9.2f} {received / wall_s / 1e6:>8.2f} {alone:>7.1%}"
        f" {'  overloaded: latencies say nothing' if max(each.late_s for each in costs) > 0.1 else ''}"
    )


async def median_us(work: Callable[[], Awaitable[object]], *, repeat: int = 200) -> float:
    """Median time of something, microseconds."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


async def script_us(client: redis_asyncio.Redis, work: Callable[[], Awaitable[object]], *, repeat: int = 200) -> float:
    """Mean time that the server spends in the script that some work calls, microseconds."""
    await client.config_resetstat()
    for _ in range(repeat):
        await work()
    return float((await client.info("commandstats"))["cmdstat_evalsha"]["usec_per_call"])


async def measure_parts(url: str, instances: int) -> str:
    """One row of the second table."""
    client, link = redis_asyncio.Redis.from_url(url), connect(url, timeout_s=5)
    publishers = Publishers(client, instances)
    await client.flushall()
    await publishers.register()
    await publishers.publish_all()
    selection = replica_of(link, "parts")
    reader, reservations = selection.readers[POOL], selection.reservations[POOL]
    for _ in range(3):
        await reader.view()

    async def raw() -> None:
        keys = [instances_key(POOL)]
        for number in range(instances):
            keys += (pressure_key(POOL, f"i{number}"), reserved_key(POOL, f"i{number}"))
        await read(keys, (0, 1024, 65536))

    read = Script(link, "read_pool")
    await raw()
    server_us = await script_us(client, raw)
    raw_us = await median_us(raw)
    known_us = await median_us(reader.view)
    changed = []
    for _ in range(20):
        await publishers.publish_all()
        changed.append(await median_us(reader.view, repeat=1))
    view = reader.last_view
    live_us = await median_us(of(lambda: view.live(time.monotonic())))
    candidates = [Candidate(each.instance, each, 0) for each in view.live(time.monotonic())]
    work = (await selection.choose("x", FACTS)).work
    evaluate_us = await median_us(of(lambda: selection.strategy.evaluate(candidates, work, selection._rng)))
    choice = (await selection.choose("x", FACTS)).decision.choice
    rank_us = await median_us(of(lambda: rank(choice.evaluation, selection._rotation)))
    offered = offers(choice, candidates)[:MOST_OFFERS]
    ids: Iterator[int] = iter(range(10**9))

    async def reserve() -> None:
        await reservations.choose(offered, reservation=f"p{next(ids)}", tokens=500, view_us=view.server_us + 10**9)

    reserve_us, reserve_server_us = await median_us(reserve), await script_us(client, reserve)
    await link.aclose()
    await client.aclose()
    return (
        f"{instances:>9} {server_us:>9.0f} {raw_us:>9.0f} {known_us:>9.0f} {statistics.median(changed):>9.0f}"
        f" {live_us:>8.0f} {evaluate_us:>8.0f} {rank_us:>8.0f} {reserve_server_us:>9.0f} {reserve_us:>9.0f}"
    )


def of(work: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """Something that is not awaited, for what awaits."""

    async def run() -> object:
        return work()

    return run


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rate", type=float, default=500.0, help="selections a second in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}"
    )
    print(
        f"{options.replicas} replicas (processes), {options.rate:g} selections/s in all, {options.seconds:g} s each\n"
    )
    head = ("instances", "p50 us", "p99 us", "replica us", "bus CPU", "out MB/s", "in MB/s", "alone")
    print("{:>9} {:>9} {:>9} {:>12} {:>9} {:>9} {:>8} {:>7}".format(*head))
    for instances in options.instances:
        with_server(
            lambda url, n=instances: measure_fleet(
                url, n, replicas=options.replicas, rate=options.rate, seconds=options.seconds
            )
        )
    print(f"\none selection in parts, us (medians; a view older than {OLDEST_VIEW_US // 1000} ms is not reserved by)")
    head = (
        "instances",
        "read lua",
        "raw read",
        "same view",
        "new view",
        "live",
        "evaluate",
        "rank",
        "rsv lua",
        "reserve",
    )
    print("{:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>9}".format(*head))
    for instances in options.instances:
        with_server(lambda url, n=instances: asyncio.run(measure_parts(url, n)))


def with_server(measure: Callable[[str], str]) -> None:
    """Print what is measured on a server of its own."""
    server = EmbeddedServer()
    server.start()
    try:
        print(measure(server.url), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
