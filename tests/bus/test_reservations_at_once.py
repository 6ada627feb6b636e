"""What tests/bus/test_reservation_machine.py does one by one, done at once: real servers, real clients, real time."""

import asyncio
import random

import pytest

from bus.in_transit import InTransit
from tests.bus.reserving import INSTANCES, Proxy, Request, World
from tests.bus.worker import until

#: Life of the reservations that a fault leaves behind, and of those of the steady traffic, which never expire here.
SHORT_MS, LONG_MS = 150, 60_000

STEPS = 25


class Crowd:
    """Many tasks that reserve, deliver, give back and publish at once, each with its own order of steps."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)

    async def run(self, *, is_faulty: bool = False) -> None:
        """Four tasks a proxy and one a worker, each for some steps."""
        async with asyncio.TaskGroup() as group:
            for proxy in self.world.proxies:
                for _ in range(4):
                    group.create_task(self.be_a_client_of(proxy, random.Random(self.rng.random()), is_faulty=is_faulty))
            for instance in INSTANCES:
                group.create_task(self.publish_on(instance))
            group.create_task(self.read_on())

    async def be_a_client_of(self, proxy: Proxy, rng: random.Random, *, is_faulty: bool) -> None:
        """Reserve, then let become of it what may."""
        for _ in range(STEPS):
            if is_faulty and rng.random() < 0.1:
                await self.something_breaks(proxy, rng)
            await proxy.look()
            before = len(proxy.requests)
            proxy.wire.loses_answer = is_faulty and rng.random() < 0.1
            await self.world.reserve(proxy, rng.randint(1, 8000), first=rng.choice(INSTANCES))
            for request in proxy.requests[before:]:
                await self.go_on_with(request, rng)

    async def go_on_with(self, request: Request, rng: random.Random) -> None:
        """Deliver it, twice perhaps, or give it back, twice perhaps, or leave it on its way."""
        if not request.is_on_its_way or request.accepted_by is not None:
            return  # of another task of this replica, which was quicker
        what = rng.random()
        if what < 0.6:
            self.world.accept(request)
            if what < 0.2:
                await asyncio.sleep(0)
                self.world.workers[request.instance].publisher.arrived(request.id)
        elif what < 0.95:
            givers = rng.sample(self.world.proxies, rng.choice((1, 2)))
            request.is_on_its_way = False  # for the other tasks: it is this one's now
            await asyncio.gather(*(self.world.give_back(giver, request) for giver in givers))

    async def something_breaks(self, proxy: Proxy, rng: random.Random) -> None:
        """A crash or a loss of data, while everybody else goes on."""
        what = rng.choice(("worker", "flush", "copy", "fail over"))
        if what == "worker":
            self.world.crash_worker(rng.choice(INSTANCES))
        elif what == "flush":
            await self.world.flush()
        else:
            copy = await self.world.copy()
            if what == "fail over":
                await proxy.look()
                await self.world.fail_over(copy)

    async def publish_on(self, instance: str) -> None:
        """A worker's own loop."""
        for _ in range(3 * STEPS):
            await self.world.publish(instance)

    async def read_on(self) -> None:
        """Whatever happens: no sum is negative, or of no requests."""
        for _ in range(3 * STEPS):
            _, sums = await self.world.in_transit()
            assert all(each == InTransit() or each.tokens >= each.requests >= 1 for each in sums.values())


@pytest.mark.parametrize("seed", range(3))
async def test_replicas_and_workers_at_once_leave_exactly_what_is_undelivered(real_bus, seed):
    """Whenever all pause, what is in transit is what was reserved and neither settled nor given back."""
    world = World(real_bus.client, real_bus.connect, grace_ms=LONG_MS)
    await world.start()
    crowd = Crowd(world, seed)

    for _ in range(3):
        await crowd.run()

        now_us, sums = await world.in_transit()
        assert sums == world.on_their_way(now_us)
    assert any(each.requests for each in sums.values())


@pytest.mark.parametrize("seed", range(3))
async def test_after_faults_the_sums_are_right_within_the_grace_period_under_steady_traffic(real_bus, seed):
    """Traffic that renews the life of the keys all the time keeps nothing alive that a fault left behind."""
    world = World(real_bus.client, real_bus.connect, grace_ms=SHORT_MS)
    await world.start()
    await Crowd(world, seed).run(is_faulty=True)
    for instance in INSTANCES:
        await world.publish(instance)
    faulty_us = await world.now_us()
    traffic = SteadyTraffic(world, world.new_proxy(grace_ms=LONG_MS))

    async def is_over() -> bool:
        await traffic.next_request()
        return (await world.now_us()) > faulty_us + SHORT_MS * 1000

    await until(is_over)

    for _ in range(5):
        await traffic.next_request()
        _, sums = await world.in_transit()
        assert sums == traffic.expected()


class SteadyTraffic:
    """One request after the other, each reserved before the last one is settled: no key is ever without one."""

    def __init__(self, world: World, proxy: Proxy) -> None:
        self._world, self._proxy = world, proxy
        self._open: dict[str, Request] = {}

    async def next_request(self) -> None:
        """Reserve at each instance, then settle what was reserved there before."""
        for instance in INSTANCES:
            await self._proxy.look()
            last, count = self._open.get(instance), len(self._proxy.requests)
            while len(self._proxy.requests) == count:  # a view may be too old on a slow machine
                await self._proxy.look()
                await self._world.reserve(self._proxy, 100, first=instance, only=True)
            self._open[instance] = self._proxy.requests[-1]
            if last is not None:
                self._world.accept(last)
                await self._world.publish(instance)

    def expected(self) -> dict[str, InTransit]:
        """What is then in transit."""
        return {name: InTransit(request.tokens, 1) for name, request in self._open.items()}
