"""Any order of what replicas, workers, stores and networks may do to reservations, in virtual and in real time.

What must hold: nothing in transit is ever negative; without crash, lost reply or loss of data it is the undelivered
work at every moment; after them it is again within the grace period, under steady traffic too, which renews the life of
the key.
"""

import asyncio
from unittest.mock import patch

import fakeredis
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus.in_transit import OLDEST_VIEW_US, InTransit, choose
from bus.keys import reserved_key
from tests.bus.reserving import INSTANCES, Copy, Proxy, Request, World
from tests.bus.worker import POOL, Worker

GRACE_MS = 2000
GRACE_US = GRACE_MS * 1000

#: What somebody may have put where a number was.
RUBBISH = ("", "rubbish", "-5", "1.5", "nan", "inf", "9" * 30)

PROXY = st.integers(0, 2)
INSTANCE = st.sampled_from(INSTANCES)
TOKENS = st.one_of(st.integers(1, 8000), st.just(2**40))
PICK = st.integers(0, 2**16)


class ServerTime:
    """The time of the process, which is fakeredis' time, stands until it is moved."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> float:
        """Seconds."""
        return self.now_us / 1e6


class AnyOrder(RuleBasedStateMachine):
    """Three replicas, two instances and one store in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = ServerTime()
        self.frozen = patch("time.time", self.time)
        self.frozen.start()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        server = fakeredis.FakeServer()
        self.clients: list[fakeredis.FakeAsyncRedis] = []

        def connect() -> fakeredis.FakeAsyncRedis:
            self.clients.append(fakeredis.FakeAsyncRedis(server=server))
            return self.clients[-1]

        self.world = World(connect(), connect, grace_ms=GRACE_MS, clock=self.time)
        self.faulty_us: int | None = None
        self.spoilt_us: int | None = None
        self.copied: Copy | None = None
        self.is_copy_spoilt = False

    @initialize()
    def start(self) -> None:
        """Both instances are announced, all proxies have looked once, and there is a copy of the store."""
        self.run(self.world.start())
        for proxy in self.world.proxies:
            self.run(proxy.look())
        self.copied = self.run(self.world.copy())

    def teardown(self) -> None:
        """Close what was opened."""
        try:
            for client in self.clients:
                self.run(client.aclose())
        finally:
            self.runner.close()
            self.frozen.stop()

    def run(self, what):
        """Do it to its end."""
        return self.runner.run(what)

    def fault(self) -> None:
        """From now on the sums may be wrong, for a grace period."""
        self.faulty_us = self.time.now_us

    def pick(self, number: int, candidates: list[Request]) -> Request | None:
        """One of several requests."""
        return candidates[number % len(candidates)] if candidates else None

    def waiting(self) -> list[Request]:
        """Requests that no worker has accepted."""
        return [each for each in self.world.requests if each.is_on_its_way and each.accepted_by is None]

    def publish_by(self, instance: str, worker: Worker | None = None) -> bool:
        """Publish, a microsecond later than whatever came before: the store takes epochs from its clock."""
        self.time.now_us += 1
        return self.run(self.world.publish(instance, worker))

    # --- the ordinary course

    @rule(proxy=PROXY)
    def a_proxy_looks(self, proxy):
        """It keeps the view; choices from it may come much later."""
        self.run(self.world.proxies[proxy].look())

    @rule(proxy=PROXY, tokens=TOKENS, first=INSTANCE, looks=st.booleans())
    def reserve(self, proxy, tokens, first, looks):
        """The choice is the one that pure Python makes of the sums of this moment; from an old view there is none."""
        chooser = self.world.proxies[proxy]
        if looks or chooser.view is None:
            self.run(chooser.look())
        self.choose(chooser, tokens, first)

    def choose(self, proxy: Proxy, tokens: int, first: str, reservation: str | None = None) -> None:
        """Choose, and compare."""
        now_us, sums = self.run(self.world.in_transit())
        reserved, offers = self.run(self.world.reserve(proxy, tokens, first=first, reservation=reservation))
        if now_us - proxy.view.server_us > OLDEST_VIEW_US:
            assert reserved is None
        else:
            assert reserved == choose(offers, [sums[offer.instance] for offer in offers])

    @rule(number=PICK)
    def deliver(self, number):
        """A worker accepts a request; no record counts it yet."""
        if request := self.pick(number, self.waiting()):
            self.world.accept(request)

    @rule(instance=INSTANCE)
    def publish(self, instance):
        """The record counts what the worker has accepted."""
        assert self.publish_by(instance)

    @rule(number=PICK, proxy=PROXY)
    def give_back(self, number, proxy):
        """A request could not be delivered."""
        if request := self.pick(number, self.waiting()):
            self.run(self.world.give_back(self.world.proxies[proxy], request))

    @rule(milliseconds=st.sampled_from([1, 20, 100, 249, 251, 700, 1999, 2000, 2001, 5000]))
    def time_passes(self, milliseconds):
        """Leases and keys expire."""
        self.time.now_us += milliseconds * 1000

    # --- what comes late, twice or crosswise, and must not matter

    @rule(number=PICK, proxy=PROXY)
    def give_back_late_or_again(self, number, proxy):
        """Whatever became of a request, ending its reservation again changes nothing."""
        over = [each for each in self.world.requests if not each.is_on_its_way]
        if request := self.pick(number, over):
            self.run(self.world.give_back(self.world.proxies[proxy], request))

    @rule(number=PICK)
    def deliver_again(self, number):
        """The same request reaches a worker once more, before or after a record counted it."""
        accepted = [each for each in self.world.requests if each.accepted_by is not None]
        if request := self.pick(number, accepted):
            self.world.workers[request.instance].publisher.arrived(request.id)
            if request.is_on_its_way:
                request.accepted_by = self.world.workers[request.instance]

    @rule(instance=INSTANCE, is_executed=st.booleans())
    def publish_without_an_answer(self, instance, is_executed):
        """The ids are sent again with the next record."""
        wire = self.world.wires[instance]
        wire.loses_answer, wire.loses_command = is_executed, not is_executed
        self.publish_by(instance)
        wire.loses_answer = wire.loses_command = False

    @precondition(lambda self: self.world.older)
    @rule(number=PICK)
    def an_older_worker_publishes(self, number):
        """Whoever was superseded settles nothing; where the store has lost its memory it may for a moment."""
        older = self.world.older[number % len(self.world.older)]
        instance = older.publisher.instance
        if self.world.workers[instance].publisher.epoch:
            self.publish_by(instance, older)

    # --- faults

    @rule(proxy=PROXY, tokens=TOKENS, first=INSTANCE)
    def the_reply_of_a_reserve_is_lost(self, proxy, tokens, first):
        """The proxy delivers to its own best, with an id that may stand elsewhere."""
        self.fault()
        chooser = self.world.proxies[proxy]
        self.run(chooser.look())
        _, sums = self.run(self.world.in_transit())
        reservation = self.world.new_id()
        chooser.wire.loses_answer = True
        reserved, offers = self.run(self.world.reserve(chooser, tokens, first=first, reservation=reservation))
        assert reserved is None
        chosen = offers[choose(offers, [sums[offer.instance] for offer in offers]).index].instance
        self.world.leave_behind(chosen, reservation, tokens, self.time.now_us)
        own_best = min(offers, key=lambda offer: offer.score).instance
        self.world.workers[own_best].publisher.arrived(reservation)

    @rule(proxy=PROXY)
    def a_proxy_crashes(self, proxy):
        """Its reservations are nobody's."""
        self.fault()
        self.world.crash_proxy(proxy)

    @rule(instance=INSTANCE)
    def a_worker_crashes_and_restarts(self, instance):
        """With a new epoch, and without a memory of what it had accepted."""
        self.fault()
        self.world.crash_worker(instance)
        self.publish_by(instance)

    @rule(proxy=PROXY, number=PICK, tokens=TOKENS, first=INSTANCE)
    def an_id_is_used_again(self, proxy, number, tokens, first):
        """That no proxy does; it costs accuracy for a grace period, no more."""
        if request := self.pick(number, self.world.requests):
            self.fault()
            self.run(self.world.proxies[proxy].look())
            self.choose(self.world.proxies[proxy], tokens, first, reservation=request.id)
            self.world.requests = [each for each in self.world.requests if each.id != request.id]

    @rule()
    def the_store_loses_everything(self):
        """FLUSHALL, or a restart without a file."""
        self.fault()
        self.run(self.world.flush())

    @rule()
    def the_store_is_copied(self):
        """A replica of it has come this far."""
        self.copied, self.is_copy_spoilt = self.run(self.world.copy()), self.spoilt_us is not None

    @rule()
    def the_store_fails_over(self):
        """What was written since the copy was made is lost."""
        self.fault()
        self.run(self.world.fail_over(self.copied))
        if self.is_copy_spoilt:
            self.spoil()

    @rule(
        instance=INSTANCE,
        field=st.sampled_from(["tokens", "requests", "oldest", "r:r1", "r:rubbish"]),
        value=st.one_of(st.sampled_from(RUBBISH), st.integers(1, 10**9).map(str)),
    )
    def somebody_spoils_a_field(self, instance, field, value):
        """Rubbish, or a wrong number, in place of what was there."""
        self.spoil()
        if self.run(self.world.client.type(reserved_key(POOL, instance))) != b"string":
            self.run(self.world.client.hset(reserved_key(POOL, instance), field, value))

    @rule(instance=INSTANCE)
    def somebody_spoils_a_key(self, instance):
        """A string without an end in place of the reservations."""
        self.spoil()
        self.run(self.world.client.set(reserved_key(POOL, instance), "no hash"))
        self.world.leases.clear(instance)

    def spoil(self) -> None:
        """From now on the store holds what no script wrote, for a grace period."""
        self.fault()
        self.spoilt_us = self.time.now_us

    # --- all of it under steady traffic

    @rule(proxy=PROXY, rounds=st.integers(1, 9))
    def steady_traffic(self, proxy, rounds):
        """One request after the other for up to 2.7 s, each reserved before the last is settled."""
        last = None
        for _ in range(rounds):
            before = len(self.world.requests)
            self.reserve(proxy, 1000, "a", looks=True)
            self.check_everything()
            if last is not None:
                self.world.accept(last)
                self.publish(last.instance)
            last = self.world.requests[before]
            self.check_everything()
            self.time.now_us += 300_000
            self.check_everything()

    # --- what must hold

    @invariant()
    def check_everything(self):
        """Never negative; as the leases say; as the requests say, unless a fault is younger than the grace period."""
        now_us, sums = self.run(self.world.in_transit())
        for each in sums.values():
            assert each.tokens >= 0
            assert each.requests >= 0
        if self.is_over(self.spoilt_us):
            assert all(each == InTransit() or each.tokens >= each.requests >= 1 for each in sums.values())
            assert sums == self.world.leases.sums(now_us)
        if self.is_over(self.faulty_us):
            assert sums == self.world.on_their_way(now_us)

    @invariant()
    def every_key_has_an_end(self):
        """No key of reservations outlives the grace period by itself, though traffic renews it."""
        if self.spoilt_us is None:
            for instance in INSTANCES:
                assert self.run(self.world.client.pttl(reserved_key(POOL, instance))) in (-2, *range(GRACE_MS + 1))

    def is_over(self, fault_us: int | None) -> bool:
        """Whether a fault was never, or a grace period ago."""
        return fault_us is None or self.time.now_us >= fault_us + GRACE_US


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyOrder = AnyOrder.TestCase
