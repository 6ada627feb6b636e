import asyncio
import time

import pytest

from bus.in_transit import Offer
from bus.keys import reserved_key
from bus.publisher import COALESCE_S
from bus.reader import Reader
from bus.reservations import Reservations
from tests.bus.publishing import _is_registered, _tells, entry, running, stored
from tests.bus.worker import INSTANCES, POOL, PRESSURE, Worker, registration, until


async def test_the_first_publish_registers_and_stores_a_record_of_the_epoch_it_was_given(bus):
    """One call makes the instance known: who serves it, and how it is."""
    worker = Worker(bus.client)
    worker.signals = {"inflight": 3, "kv_usage": None}

    await worker.publish()

    record, found = await stored(bus), await entry(bus)
    assert (record.inflight, record.kv_usage, record.sequence) == (3, None, 1)
    assert record.epoch == found.epoch == worker.publisher.epoch > 0
    assert found.registration == worker.registration


async def test_the_record_lives_as_long_as_its_ttl_and_each_publish_renews_it(bus):
    """A worker that stops is forgotten by itself."""
    worker = Worker(bus.client, ttl_ms=400)
    await worker.publish()
    assert 0 < await bus.client.pttl(PRESSURE) <= 400
    await bus.client.pexpire(PRESSURE, 100)

    await worker.publish()
    assert await bus.client.pttl(PRESSURE) > 100

    await until(lambda: _is_absent(bus))


async def test_reservations_count_as_settled_only_if_they_stood(bus):
    """What had expired before its request arrived is not settled; the record that was stored is remembered."""
    worker = Worker(bus.client)
    await worker.publish()
    reservations = Reservations(bus.client, POOL)
    seconds, microseconds = await bus.client.time()
    now_us = int(seconds) * 1_000_000 + int(microseconds)
    offer = Offer("a", 0.0, 0.0, 0.0, 0, 0)
    await reservations.choose([offer], reservation="stands", tokens=5, view_us=now_us + 30_000_000)
    worker.publisher.arrived("stands")
    worker.publisher.arrived("expired")
    worker.signals = {"inflight": 2}

    await worker.publish()

    assert (reservations.made, worker.publisher.settled) == (1, 1)
    assert worker.publisher.last_record.inflight == 2


async def test_changes_in_quick_succession_share_records(bus):
    """However often something changes, there is at most one record in 20 ms, and the last one tells the last change."""
    worker = Worker(bus.client)
    async with running(worker):
        began_s = time.monotonic()
        for number in range(200):
            worker.signals = {"inflight": number}
            worker.publisher.changed()
            await asyncio.sleep(0)
        await until(lambda: _tells(bus, inflight=199))
        took_s = time.monotonic() - began_s

    assert worker.publisher.published <= 2 + took_s / (COALESCE_S - 0.002)


async def test_a_change_during_a_publish_is_published_too(bus):
    """What changes between the making of a record and the server's answer comes with the next record."""
    worker = Worker(bus.client, ttl_ms=600_000)
    made = worker.publisher._make_record

    def make_and_change(epoch, sequence):
        record = made(epoch, sequence)
        if sequence == 1:
            worker.signals = {"inflight": 77}
            worker.publisher.changed()
        return record

    worker.publisher._make_record = make_and_change
    async with running(worker):
        await until(lambda: _tells(bus, inflight=77))


async def test_without_a_change_there_is_a_record_at_every_heartbeat(bus):
    """A third of the TTL passes between two records, and the key never disappears."""
    worker = Worker(bus.client, ttl_ms=450)
    async with running(worker):
        await until(lambda: worker.publisher.published == 1)
        began_s = time.monotonic()
        await until(lambda: worker.publisher.published >= 4)
        took_s = time.monotonic() - began_s
        assert await bus.client.exists(PRESSURE)

    assert took_s >= 3 * 0.150 - 0.030


async def test_a_lost_registration_is_announced_with_the_next_publish(bus):
    """After FLUSHALL a running worker is known again without waiting for its renewal, under the same epoch."""
    worker = Worker(bus.client, ttl_ms=300)
    async with running(worker):
        await until(lambda: worker.publisher.published == 1)
        epoch = worker.publisher.epoch
        await bus.client.flushall()
        worker.publisher.changed()
        await until(lambda: _is_registered(bus))

    assert (await entry(bus)).epoch == epoch


@pytest.mark.parametrize("key", [PRESSURE, INSTANCES, reserved_key(POOL, "a")])
async def test_a_key_of_another_type_is_replaced(bus, key):
    """Whoever put it there: a worker that publishes and one that claims an epoch go on, and so do readers."""
    worker, reader = Worker(bus.client), Reader(bus.connect(), POOL, budget_s=5)
    await worker.publish()
    await reader.view()
    for publisher in (worker, Worker(bus.client)):
        await bus.client.delete(key)
        await bus.client.set(key, "no hash")
        reader._entries_at_s = float("-inf")  # they are read again
        assert list((await reader.view()).readings) == ["a"]
        await publisher.publish()
        assert publisher.publisher.failures == 0
        assert await bus.client.type(key) in (b"hash", b"none")
        await publisher.publish()  # a registration that was lost is announced by then
        reader._entries_at_s = float("-inf")  # they are read again
        assert (await reader.view()).readings["a"].record is not None
        assert (await entry(bus)).epoch == publisher.publisher.epoch
    assert reader.read_failures == 0


async def test_the_registration_is_renewed_after_a_third_of_its_life(bus, clock):
    """Two renewals may fail before the instance is taken for dead."""
    worker = Worker(bus.client, registration_ttl_s=30, clock=clock)
    await worker.publish()
    first = (await entry(bus)).expires_us

    clock.move(9.9)
    await worker.publish()
    assert (await entry(bus)).expires_us == first

    clock.move(0.2)
    await worker.publish()
    assert (await entry(bus)).expires_us > first


async def test_a_changed_registration_is_announced_with_the_next_publish(bus, clock):
    """Draining is known at once, not at the next renewal."""
    worker = Worker(bus.client, clock=clock)
    await worker.publish()
    worker.registration = registration(state="draining")

    await worker.publish()
    assert (await entry(bus)).registration.state == "ready"

    worker.publisher.announce()
    await worker.publish()
    assert (await entry(bus)).registration.state == "draining"


async def test_announce_during_an_announcement_is_not_lost(bus, clock):
    """A registration that changes while its older state is on the way is sent again."""
    worker = Worker(bus.client, clock=clock)
    register = worker.publisher._register

    async def change_on_the_way(keys, args):
        answer = await register(keys, args)
        if worker.registration.state == "ready":
            worker.registration = registration(state="draining")
            worker.publisher.announce()
        return answer

    worker.publisher._register = change_on_the_way
    await worker.publish()
    await worker.publish()

    assert (await entry(bus)).registration.state == "draining"


async def _is_absent(bus):
    return not await bus.client.exists(PRESSURE)
