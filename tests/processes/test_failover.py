"""The bus changes its server while traffic flows: no request fails, and it is told how long choices did without it."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from bus.keys import instances_key
from tests.bus.forms.cluster import Cluster
from tests.bus.forms.node import Node
from tests.bus.forms.sentinels import Sentinels
from tests.processes.fleet import Fleet, until
from tests.processes.traffic import Traffic
from tests.servers import BINARIES

pytestmark = pytest.mark.processes

LANES = 4


def program(kind: str) -> Path:
    """Server program of a kind."""
    find, why_not = BINARIES[kind]
    return find() or pytest.skip(why_not)


@pytest.fixture
def say(capsys) -> Callable[[str], None]:
    """Give a way to print a figure that is seen whatever pytest captures."""

    def print_it(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    return print_it


def made(fleet: Fleet, pool: str) -> list[float]:
    """Choices that each replica has made on the bus."""
    return [replica.metric("forebay_reservations_total", pool=pool, outcome="made") for replica in fleet.replicas]


def recovery_s(fleet: Fleet, pool: str, began_s: float, before: list[float]) -> float:
    """Seconds from a moment until every replica's view of a pool is fresh and it reserves on the bus again."""

    def is_back() -> bool:
        states = [replica.bus_state(pool) for replica in fleet.replicas]
        return set(states) == {"fresh"} and all(n > b for n, b in zip(made(fleet, pool), before, strict=True))

    until(is_back, f"{pool} is fresh and reserves")
    return time.monotonic() - began_s


async def fail_over(
    fleet: Fleet, pools: Sequence[str], bus: Sentinels | Cluster, *, fault: str, say: Callable[[str], None]
) -> Node:
    """Take the first pool's master away, wait for its successor and for all pools, and print how long that took."""
    holder = partial(bus.holder, instances_key(pools[0]))
    master = holder()
    before = {pool: made(fleet, pool) for pool in pools}
    began_s = time.monotonic()
    master.kill() if fault == "killed" else master.signal(signal.SIGSTOP)
    await asyncio.to_thread(until, lambda: holder() is not master, "another is the master")
    promoted_s = time.monotonic() - began_s
    back = [f"{await asyncio.to_thread(recovery_s, fleet, pool, began_s, before[pool]):.2f} s" for pool in pools]
    say(f"{bus}: master {fault}; a successor after {promoted_s:.2f} s, choices on the bus after {', '.join(back)}")
    return master


async def test_a_master_that_sentinels_replace_costs_no_request(tmp_path, http, say):
    """It is killed, and the next one frozen: replicas and workers ask the sentinels and go on with its successor."""
    with Sentinels(program("redis")) as bus, Fleet(tmp_path, redis=bus.url) as fleet:
        fleet.start(engine=["--speed", "20"])
        async with Traffic(http, fleet, lanes=LANES) as traffic:
            await traffic.more(20)
            killed = await fail_over(fleet, ["default"], bus, fault="killed", say=say)
            killed.start()
            await asyncio.to_thread(bus.wait)
            frozen = await fail_over(fleet, ["default"], bus, fault="frozen", say=say)
            frozen.signal(signal.SIGCONT)  # it takes itself for the master still
            await asyncio.to_thread(until, lambda: frozen.says("role:slave"), "it follows its successor")
            await asyncio.to_thread(fleet.wait)
            await traffic.more(20)
        say(f"{traffic.answered} requests, none failed, the slowest {traffic.slowest_s:.2f} s")
        assert "Traceback" not in "".join(part.text for part in fleet.parts)


async def test_a_shard_that_fails_over_costs_no_request(tmp_path, http, say):
    """One replica serves two pools on two shards; the master of one is killed, and its successor frozen."""
    with Cluster(program("valkey")) as bus, Fleet(tmp_path, redis=bus.url) as fleet:
        near, far = two_pools(bus)
        for number, pool in enumerate((near, far)):
            for engine in fleet.start_engines("--speed", "20", "--model", f"model-{number}", count=2):
                fleet.start_worker(f"i{len(fleet.workers)}", engine, "--pool", pool)
        for _ in range(2):
            fleet.start_replica("--pool", near, "--pool", far)
        fleet.wait()
        async with Traffic(http, fleet, lanes=LANES, models=("model-0", "model-1")) as traffic:
            await traffic.more(20)
            killed = await fail_over(fleet, [near, far], bus, fault="killed", say=say)
            killed.start()
            await asyncio.to_thread(bus.wait)
            frozen = await fail_over(fleet, [near, far], bus, fault="frozen", say=say)
            frozen.signal(signal.SIGCONT)
            await asyncio.to_thread(until, lambda: frozen.says("role:slave"), "it follows its successor")
            await asyncio.to_thread(fleet.wait)
            await traffic.more(20)
        say(f"{traffic.answered} requests, none failed, the slowest {traffic.slowest_s:.2f} s")
        assert "Traceback" not in "".join(part.text for part in fleet.parts)


def two_pools(cluster: Cluster) -> tuple[str, str]:
    """Names of two pools whose keys are on two masters."""
    names = [f"pool-{number}" for number in range(40)]
    other = next(n for n in names if cluster.holder(instances_key(n)) is not cluster.holder(instances_key(names[0])))
    return names[0], other
