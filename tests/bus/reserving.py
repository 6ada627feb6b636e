"""Proxies and workers that reserve, deliver and publish on one store, and what should then be in transit.

Everything goes through the product's own classes. Two tellings of the story are kept beside it: `Leases`, the store
as it should be, in pure Python; and the requests themselves, of which each knows whether it is still on its way.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import redis.asyncio as redis_asyncio
import redis.exceptions

from bus.in_transit import InTransit, Offer, Reserved
from bus.keys import instances_key, pressure_key, reserved_key
from bus.reader import Reader
from bus.record import MAX_RECORD_BYTES
from bus.registration import MAX_ENTRY_BYTES
from bus.reservations import Reservations
from bus.scripts import Commands, Script
from bus.view import PoolView
from tests.bus.worker import POOL, Worker

INSTANCES = ("a", "b")

#: Cost of what is in transit in the offers: a request weighs as much as 250 tokens.
PER_TOKEN, PER_REQUEST = 0.001, 0.25


class Wire:
    """A client whose next script call is lost on its way, or whose next answer is."""

    def __init__(self, client: Commands) -> None:
        self.client = client
        self.loses_command = self.loses_answer = False
        self.has_lost_answer = False
        """Whether the call that was lost last came through, and only its answer did not."""
        self._execute = client.execute_command
        client.execute_command = self._lossy  # type: ignore[method-assign]

    async def _lossy(self, *args: Any, **options: Any) -> Any:
        is_call = args[0] == "EVALSHA"
        if is_call and self.loses_command:
            self.loses_command = self.has_lost_answer = False
            raise redis.exceptions.ConnectionError("the command was lost")
        answer = await self._execute(*args, **options)
        if is_call and self.loses_answer:
            self.loses_answer, self.has_lost_answer = False, True
            raise redis.exceptions.ConnectionError("the answer was lost")
        return answer


class Lease(msgspec.Struct, frozen=True):
    """One reservation as the store should hold it."""

    tokens: int
    expires_us: int


class Leases:
    """The store as it should be: what stands at each instance, by id."""

    def __init__(self) -> None:
        self._standing: dict[tuple[str, str], Lease] = {}

    def reserve(self, instance: str, reservation: str, lease: Lease, now_us: int) -> None:
        """Add one, unless it stands there already."""
        standing = self._standing.get((instance, reservation))
        if standing is None or standing.expires_us <= now_us:
            self._standing[instance, reservation] = lease

    def end(self, instance: str, reservation: str) -> None:
        """End one, if it stands."""
        self._standing.pop((instance, reservation), None)

    def sums(self, now_us: int) -> dict[str, InTransit]:
        """What is in transit to each instance."""
        found = {}
        for name in INSTANCES:
            tokens = [
                lease.tokens
                for (instance, _), lease in self._standing.items()
                if instance == name and lease.expires_us > now_us
            ]
            found[name] = InTransit(sum(tokens), len(tokens))
        return found

    def copy(self) -> "Leases":
        """The same again."""
        other = Leases()
        other._standing = dict(self._standing)
        return other

    def clear(self, instance: str | None = None) -> None:
        """Lose everything, or everything at one instance."""
        self._standing = {
            key: lease for key, lease in self._standing.items() if instance is not None and key[0] != instance
        }


class Request(msgspec.Struct, eq=False):
    """One request, and whether it is still on its way."""

    id: str
    instance: str
    tokens: int
    expires_us: int
    """When its reservation expires at the latest."""
    is_on_its_way: bool = True
    """Reserved, and neither counted by a record nor given back nor lost with a process."""
    accepted_by: Worker | None = None


class Proxy:
    """One replica, as far as it reserves."""

    def __init__(self, client: Commands, *, grace_ms: int, clock: Callable[[], float] | None = None) -> None:
        self.wire = Wire(client)
        self.reader = Reader(client, POOL, budget_s=5, **({"clock": clock} if clock else {}))
        over = count(step=10).__next__  # by its clock each pause is over: what is lost here is no silence of the bus
        self.reservations = Reservations(client, POOL, grace_ms=grace_ms, clock=over)
        self.view: PoolView | None = None
        self.grace_us = grace_ms * 1000
        self.requests: list[Request] = []

    async def look(self) -> PoolView:
        """Read the view that the next choices are made from."""
        self.view = await self.reader.view()
        return self.view

    def offers(self, first: str) -> list[Offer]:
        """Two equal idle instances, their scores by what the view shows in transit, `first` first."""
        assert self.view is not None
        found = []
        for name in sorted(INSTANCES, key=lambda name: name != first):
            reading = self.view.readings.get(name)
            tokens, requests = (reading.in_transit_tokens, reading.in_transit_requests) if reading else (0, 0)
            score = PER_TOKEN * tokens + PER_REQUEST * requests
            found.append(Offer(name, score, PER_TOKEN, PER_REQUEST, tokens, requests))
        return found


class World:
    """Three proxies, two workers and a store; methods are what may happen, one at a time or at once."""

    def __init__(
        self,
        client: redis_asyncio.Redis,
        connect: Callable[[], Commands],
        *,
        grace_ms: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.client = client
        self.grace_us = grace_ms * 1000
        self.leases = Leases()
        self.requests: list[Request] = []
        self._connect = connect
        self._clock = clock
        self._grace_ms = grace_ms
        self._read = Script(self.client, "read_pool")
        self._number = 0
        self.proxies = [self.new_proxy() for _ in range(3)]
        self.wires = {name: Wire(connect()) for name in INSTANCES}
        self.workers = {name: self._new_worker(name) for name in INSTANCES}
        self.older: list[Worker] = []

    def new_proxy(self, *, grace_ms: int | None = None) -> Proxy:
        """One more replica."""
        return Proxy(self._connect(), grace_ms=grace_ms or self._grace_ms, clock=self._clock)

    async def start(self) -> None:
        """Announce both instances."""
        for worker in self.workers.values():
            await worker.publish()

    # --- what is

    async def now_us(self) -> int:
        """Server time."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    async def in_transit(self) -> tuple[int, dict[str, InTransit]]:
        """Server time, and what the store then has in transit to each instance."""
        keys = [instances_key(POOL)]
        for name in INSTANCES:
            keys += (pressure_key(POOL, name), reserved_key(POOL, name))
        seconds, microseconds, _, *rows = await self._read(keys, (0, MAX_RECORD_BYTES, MAX_ENTRY_BYTES))
        sums = {name: InTransit(*row[3:]) for name, row in zip(INSTANCES, rows, strict=True)}
        return int(seconds) * 1_000_000 + int(microseconds), sums

    def on_their_way(self, now_us: int) -> dict[str, InTransit]:
        """What the requests themselves say: reserved at most a grace period ago, and not ended."""
        found = {}
        for name in INSTANCES:
            here = [
                each.tokens
                for each in self.requests
                if each.is_on_its_way and each.instance == name and each.expires_us > now_us
            ]
            found[name] = InTransit(sum(here), len(here))
        return found

    # --- what replicas do

    def new_id(self) -> str:
        """An id that no request had."""
        self._number += 1
        return f"r{self._number}"

    async def reserve(
        self, proxy: Proxy, tokens: int, *, first: str = "a", only: bool = False, reservation: str | None = None
    ) -> tuple[Reserved | None, list[Offer]]:
        """Choose by the proxy's last view and reserve there; `only`: nothing but `first` is offered."""
        reservation = reservation or self.new_id()
        offers = proxy.offers(first)[: 1 if only else None]
        assert proxy.view is not None
        reserved = await proxy.reservations.choose(
            offers, reservation=reservation, tokens=tokens, view_us=proxy.view.server_us
        )
        if reserved is not None:
            now_us = await self.now_us()
            instance = offers[reserved.index].instance
            request = Request(reservation, instance, tokens, now_us + proxy.grace_us)
            self.requests.append(request)
            proxy.requests.append(request)
            self.leases.reserve(instance, reservation, Lease(tokens, request.expires_us), now_us)
        return reserved, offers

    async def give_back(self, proxy: Proxy, request: Request) -> None:
        """Whichever proxy says so: this request was not delivered."""
        proxy.reservations.give_back(request.instance, request.id)
        await proxy.reservations.close()
        self.leases.end(request.instance, request.id)
        request.is_on_its_way = False

    def crash_proxy(self, index: int) -> None:
        """A replica is gone, and every request that it had not delivered; another takes its place."""
        for request in self.proxies[index].requests:
            request.is_on_its_way = request.is_on_its_way and request.accepted_by is not None
        self.proxies[index] = self.new_proxy()

    def leave_behind(self, instance: str, reservation: str, tokens: int, now_us: int) -> None:
        """A reservation stands of which its proxy knows nothing."""
        self.leases.reserve(instance, reservation, Lease(tokens, now_us + self.grace_us), now_us)

    # --- what workers do

    def _new_worker(self, name: str) -> Worker:
        clock = {"clock": self._clock} if self._clock else {}
        return Worker(self.wires[name].client, name, **clock)

    def accept(self, request: Request, instance: str | None = None) -> None:
        """A worker takes a request: its own, or the one it was sent to in the end."""
        worker = self.workers[instance or request.instance]
        worker.publisher.arrived(request.id)
        if instance in (None, request.instance):
            request.accepted_by = worker

    async def publish(self, instance: str, worker: Worker | None = None) -> bool:
        """Publish, and settle what the record counts; whether the store took it, answer or no answer."""
        worker = worker or self.workers[instance]
        publisher = worker.publisher
        counted, failures, sequence = list(publisher._arrived), publisher.failures, publisher.sequence
        accepted = [request for request in self.requests if request.accepted_by is worker]
        await worker.publish()
        if publisher.failures == failures:  # those that arrived while the instance was announced are counted too
            settled = [
                each for each in self.requests if each.accepted_by is worker and each.id not in publisher._arrived
            ]
        else:
            came_through = publisher.sequence > sequence and self.wires[instance].has_lost_answer
            stored = await self.client.hmget(pressure_key(POOL, instance), "epoch", "sequence")
            if not came_through or stored != [str(n).encode() for n in (publisher.epoch, publisher.sequence)]:
                return False
            settled = accepted
        for reservation in (*counted, *(each.id for each in settled)):
            if reservation not in publisher._arrived or publisher.failures > failures:
                self.leases.end(instance, reservation)
        for request in settled:
            request.is_on_its_way = False
        return True

    def crash_worker(self, instance: str) -> None:
        """A worker is gone, with what no record of its showed; another will take its place with a new epoch."""
        old = self.workers[instance]
        for request in self.requests:
            if request.accepted_by is old:
                request.is_on_its_way = False
        self.older.append(old)
        self.workers[instance] = self._new_worker(instance)

    # --- what stores do

    async def flush(self) -> None:
        """Lose everything."""
        await self.client.flushall()
        self.leases.clear()

    async def copy(self) -> "Copy":
        """Everything, as a replica of the store holds it."""
        keys = {}
        for key in await self.client.keys("*"):
            life_ms = await self.client.pttl(key)
            if life_ms > 0 and await self.client.type(key) == b"hash" and (fields := await self.client.hgetall(key)):
                keys[key] = fields, await self.now_us() // 1000 + life_ms
        return Copy(keys, self.leases.copy())

    async def fail_over(self, copy: "Copy") -> None:
        """Go on with a copy: what was written since is lost."""
        async with self.client.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, (fields, expires_ms) in copy.keys.items():
                pipe.hset(key, mapping=fields)
                pipe.pexpireat(key, expires_ms)
            await pipe.execute()
        self.leases = copy.leases.copy()


class Copy(msgspec.Struct, frozen=True):
    """A store as of some moment ago."""

    keys: dict[bytes, tuple[dict[bytes, bytes], int]]
    leases: Leases
