import asyncio

import pytest

from bus.in_transit import OLDEST_VIEW_US, InTransit, Offer
from bus.keys import reserved_key
from bus.reservations import Reservations
from tests.bus.reserving import Wire
from tests.bus.store import AB, LONGEST_GRACE_MS, Store
from tests.bus.worker import POOL, Worker, until

# --- races, by name


class Race:
    """One worker, and a replica that has reserved 100 tokens for request x and 20 for y, which is still on its way."""

    def __init__(self, bus) -> None:
        self.store = Store(bus.client)
        self.wire = Wire(bus.connect())
        self.worker = Worker(self.wire.client)
        self.replicas = [Reservations(bus.connect(), POOL) for _ in range(2)]

    async def begin(self) -> "Race":
        """Reserve both."""
        await self.worker.publish()
        await self.reserve("x", 100)
        await self.reserve("y", 20)
        assert await self.store.sums() == InTransit(120, 2)
        return self

    async def reserve(self, reservation: str, tokens: int) -> None:
        """Reserve at the worker's instance."""
        offers, view_us = [Offer("a", 0.0, 0.0, 0.0, 0, 0)], await self.store.young_us()
        assert await self.replicas[0].choose(offers, reservation=reservation, tokens=tokens, view_us=view_us)

    async def give_back(self, replica: int = 0, reservation: str = "x") -> None:
        """A replica gives back."""
        self.replicas[replica].give_back("a", reservation)
        await self.replicas[replica].close()

    async def only_y_is_left(self) -> bool:
        """Whether nothing but y is in transit."""
        return await self.store.sums() == InTransit(20, 1)


@pytest.fixture
async def race(bus) -> Race:
    """Give the two requests in transit."""
    return await Race(bus).begin()


@pytest.mark.parametrize("order", ["give back first", "settle first", "at once"])
async def test_give_back_crossing_the_settlement(race, order):
    """The worker had accepted what the proxy took for undelivered: whoever comes second changes nothing."""
    race.worker.publisher.arrived("x")

    if order == "give back first":
        await race.give_back()
        await race.worker.publish()
    elif order == "settle first":
        await race.worker.publish()
        await race.give_back()
    else:
        await asyncio.gather(race.give_back(), race.worker.publish())

    assert await race.only_y_is_left()


async def test_arrival_after_expiry(race):
    """A request that took longer than the grace period is settled to no effect on those that stand."""
    key = reserved_key(POOL, "a")
    now_us = await race.store.now_us()
    await race.store.client.hset(key, mapping={"r:x": f"100;{now_us - 1}", "oldest": now_us - 1})
    assert await race.only_y_is_left()

    race.worker.publisher.arrived("x")
    await race.worker.publish()

    assert await race.only_y_is_left()
    await race.give_back()
    assert await race.only_y_is_left()


async def test_a_reserve_that_ran_late(real_bus):
    """The replica gave up; the server, stopped for longer than 250 ms, runs the script and reserves nothing."""
    store, reservations = Store(real_bus.client), Reservations(real_bus.connect(timeout_s=0.05), POOL)
    await reservations.choose(AB, reservation="first", tokens=1, view_us=await store.young_us())  # it knows the script
    calls = (await real_bus.calls())["evalsha"]
    view_us = await store.now_us()

    real_bus.fall_silent()
    assert await reservations.choose(AB, reservation="late", tokens=1, view_us=view_us) is None
    loop = asyncio.get_running_loop()
    over_s = loop.time() + 1.2 * OLDEST_VIEW_US / 1e6
    await until(lambda: loop.time() > over_s)
    real_bus.speak_again()

    async def has_run() -> bool:
        return (await real_bus.calls())["evalsha"] > calls

    await until(has_run)
    assert {"r:late"}.isdisjoint(await store.fields("a") | await store.fields("b"))
    assert (reservations.failures, reservations.too_late) == (1, 0)


async def test_a_reserve_whose_reply_is_lost_stands_until_it_expires(bus):
    """The replica delivers to its own best; what was reserved elsewhere under the same id is over with its grace."""
    store, wire = Store(bus.client), Wire(bus.connect())
    reservations = Reservations(wire.client, POOL, grace_ms=50)
    await store.reserve("a", reservation="others", amount=5000, grace_ms=LONGEST_GRACE_MS)  # and renews no expiry of x
    wire.loses_answer = True

    assert await reservations.choose(AB, reservation="x", tokens=10, view_us=await store.young_us()) is None
    worker = Worker(bus.connect(), "a")
    worker.publisher.arrived("x")
    await worker.publish()

    async def is_over() -> bool:
        return await store.sums("b") == InTransit()

    await until(is_over)
    assert await store.sums("a") == InTransit(5000, 1)


async def test_resend_on_a_fresh_connection(race):
    """The worker gets the same request twice, once before and once after the record that counts it."""
    race.worker.publisher.arrived("x")
    race.worker.publisher.arrived("x")
    await race.worker.publish()
    race.worker.publisher.arrived("x")
    await race.worker.publish()

    assert await race.only_y_is_left()


async def test_a_worker_restarted_while_requests_are_in_transit(race, bus):
    """What the old worker had accepted and not published is the replica's to give back; the old one settles no more."""
    race.worker.publisher.arrived("x")
    newer = Worker(bus.connect())
    await newer.publish()
    race.worker.publisher.arrived("y")

    await race.worker.publish()  # refused
    assert race.worker.gave_way == 1
    assert await race.store.sums() == InTransit(120, 2)
    await race.give_back()
    assert await race.only_y_is_left()
    newer.publisher.arrived("y")
    await newer.publish()
    assert await race.store.sums() == InTransit()


@pytest.mark.parametrize("is_executed", [True, False])
async def test_publish_whose_reply_is_lost(race, is_executed):
    """The ids are sent again with the next record, whether or not the first one came through."""
    race.wire.loses_answer, race.wire.loses_command = is_executed, not is_executed
    race.worker.publisher.arrived("x")
    await race.worker.publish()
    assert race.worker.publisher.failures == 1
    assert await race.only_y_is_left() == is_executed

    await race.worker.publish()

    assert await race.only_y_is_left()


async def test_two_proxies_give_back_the_same_id(race):
    """One of them ends it."""
    await asyncio.gather(race.give_back(0), race.give_back(1))

    assert await race.only_y_is_left()
    assert sorted(each.given_back for each in race.replicas) == [0, 1]


async def test_a_reservation_id_used_again(race):
    """While it stands it counts once, with its first amount; after its end it is a new one."""
    await race.reserve("x", 7)
    assert await race.store.sums() == InTransit(120, 2)

    await race.give_back()
    await race.reserve("x", 7)

    assert await race.store.sums() == InTransit(27, 2)
