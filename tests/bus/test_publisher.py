import asyncio
import contextlib
import logging
import time

import pytest

from bus.in_transit import Offer
from bus.keys import instances_key, pressure_key, reserved_key
from bus.publisher import COALESCE_S
from bus.reader import Reader
from bus.record import decode_record
from bus.registration import decode_entry, encode_registration
from bus.reservations import Reservations
from tests.bus.worker import POOL, Worker, registration, until

PRESSURE, INSTANCES = pressure_key(POOL, "a"), instances_key(POOL)


@contextlib.asynccontextmanager
async def running(worker):
    """Run a worker's publisher, and end it."""
    task = asyncio.create_task(worker.publisher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def stored(bus):
    """The record that stands in the bus."""
    return decode_record(await bus.client.hget(PRESSURE, "record")).record


async def entry(bus, instance="a"):
    """The registration that stands in the bus."""
    raw = await bus.client.hget(INSTANCES, instance)
    return None if raw is None else decode_entry(raw)


async def _claimed_ahead_of_the_clock(bus) -> int:
    """An epoch as a server whose clock is an hour ahead has given it, in an entry of its own."""
    epoch = int(time.time() + 3600) * 1_000_000
    await bus.client.hset(INSTANCES, "a", b"%d;%d;" % (epoch, epoch) + encode_registration(registration("a")))
    return epoch


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


async def test_a_newer_worker_takes_over_and_the_older_one_gives_way_once(bus, caplog):
    """The older worker is told, says so, ends, and writes nothing any more."""
    older, newer = Worker(bus.client), Worker(bus.connect())
    async with running(older) as task:
        await until(lambda: older.publisher.published == 1)
        await newer.publish()
        older.publisher.changed()
        await asyncio.wait_for(task, 10)
    older.publisher.announce()
    await asyncio.gather(older.publish(), older.publish())

    assert older.publisher.is_superseded
    assert older.gave_way == 1
    assert newer.gave_way == 0
    assert (await stored(bus)).epoch == (await entry(bus)).epoch == newer.publisher.epoch
    assert [r.levelno for r in caplog.records if "newer worker" in r.message] == [logging.ERROR]


async def test_two_publishes_under_way_give_way_once(bus):
    """Both are refused; the worker is told once."""
    older, newer = Worker(bus.client), Worker(bus.client)
    await older.publish()
    await newer.publish()

    await asyncio.gather(older.publish(), older.publish())

    assert older.gave_way == 1


async def test_the_older_worker_is_refused_after_the_newer_ones_record_expired(bus):
    """The registration of the newer worker goes on fencing."""
    older, newer = Worker(bus.client), Worker(bus.client)
    await older.publish()
    await newer.publish()
    await bus.client.delete(PRESSURE)

    await older.publish()

    assert older.gave_way == 1
    assert not await bus.client.exists(PRESSURE)


async def test_an_older_worker_that_publishes_first_after_a_loss_still_gives_way(bus):
    """FLUSHALL takes the fence away for a moment; the newer worker's next record puts it up again."""
    older, newer = Worker(bus.client), Worker(bus.client)
    await older.publish()
    await newer.publish()
    await bus.client.flushall()

    await older.publish()  # nothing says otherwise: stored
    await newer.publish()
    await older.publish()

    assert older.gave_way == 1
    assert newer.gave_way == 0
    assert (await stored(bus)).epoch == newer.publisher.epoch


async def test_of_two_workers_that_were_given_one_epoch_only_one_goes_on(bus):
    """A failover to a copy that lacks the last claim, on a server whose clock is behind: the next one gets it again."""
    ahead = await _claimed_ahead_of_the_clock(bus)
    copy = await bus.client.hgetall(INSTANCES)
    first, second = Worker(bus.client), Worker(bus.client)
    for _ in range(3):
        await first.publish()
    await bus.client.flushall()
    await bus.client.hset(INSTANCES, mapping=copy)
    await second.publish()
    assert second.publisher.epoch == first.publisher.epoch == ahead + 1

    for _ in range(5):
        await first.publish()
        await second.publish()

    assert [first.gave_way, second.gave_way].count(1) == 1
    winner = first if second.gave_way else second
    assert (await stored(bus)).epoch == (await entry(bus)).epoch == winner.publisher.epoch > ahead + 1


async def test_a_worker_whose_epoch_is_ahead_of_the_clock_stays_until_another_has_seen_it(bus):
    """A loss of everything and a clock set back give the next worker a lower epoch: one gives way, not both."""
    await _claimed_ahead_of_the_clock(bus)
    older, newer = Worker(bus.client), Worker(bus.client)
    await older.publish()
    await bus.client.flushall()
    await newer.publish()
    assert newer.publisher.epoch < older.publisher.epoch

    await older.publish()
    await newer.publish()

    assert (older.gave_way, newer.gave_way) == (0, 1)
    restarted = Worker(bus.client)  # as whatever keeps workers running does
    await restarted.publish()
    assert restarted.publisher.epoch > older.publisher.epoch
    await older.publish()
    assert older.gave_way == 1


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


async def test_a_withdrawn_instance_is_gone_and_its_models_are_remembered(bus):
    """The entry stays, expired and with the state gone."""
    worker = Worker(bus.client)
    await worker.publish()

    await worker.publisher.withdraw(registration(state="gone"))

    found = await entry(bus)
    seconds, microseconds = await bus.client.time()
    assert found.registration.state == "gone"
    assert found.registration.models == ("model-a",)
    assert found.expires_us <= int(seconds) * 1_000_000 + int(microseconds)


async def test_a_publish_after_the_withdrawal_does_not_bring_the_instance_back(bus):
    """Neither a publish that is under way nor a later one registers what has left."""
    worker = Worker(bus.client)
    async with running(worker) as task:
        await until(lambda: worker.publisher.published == 1)
        worker.publisher.changed()
        await worker.publisher.withdraw(registration(state="gone"))
        await asyncio.wait_for(task, 10)  # it ends by itself
    published = worker.publisher.published
    worker.publisher.announce()
    await worker.publish()

    assert (await entry(bus)).registration.state == "gone"
    assert worker.publisher.published == published


async def test_a_worker_that_gave_way_withdraws_nothing(bus):
    """The entry belongs to the newer worker."""
    older, newer = Worker(bus.client), Worker(bus.client)
    await older.publish()
    await newer.publish()
    await older.publish()

    await older.publisher.withdraw(registration(state="gone"))

    assert (await entry(bus)).registration.state == "ready"


async def test_a_worker_that_never_reached_the_bus_withdraws_nothing(bus):
    """Without an epoch there is no entry to take back, and none is made."""
    worker = Worker(bus.client)

    await worker.publisher.withdraw(registration(state="gone"))

    assert await bus.client.dbsize() == 0


async def test_a_silent_bus_is_said_once_and_its_return_once(bus, caplog):
    """Ten failed publishes are ten failures and one line; the first one that succeeds is the second line."""
    worker = Worker(bus.connect(0.03))
    await worker.publish()
    bus.fall_silent()
    for _ in range(10):
        await worker.publish()
    bus.speak_again()
    await worker.publish()
    await worker.publish()

    said = [record.message for record in caplog.records if "instance a" in record.message]
    assert worker.publisher.failures == 10
    assert len(said) == 2
    assert "does not answer" in said[0]
    assert "answers again" in said[1]


async def test_a_worker_started_before_the_bus_is_known_as_soon_as_it_answers(bus):
    """No epoch, no record: the first answer gives the epoch, the same publish the record."""
    bus.fall_silent()
    worker = Worker(bus.connect(0.03), ttl_ms=150)
    async with running(worker):
        await until(lambda: worker.publisher.failures >= 2)
        assert worker.publisher.epoch == 0
        bus.speak_again()
        await until(lambda: _tells(bus, inflight=1))

    assert (await entry(bus)).epoch == worker.publisher.epoch > 0


async def test_changes_do_not_hammer_a_bus_that_is_down(bus):
    """While it does not answer, changes are tried at most every 100 ms."""
    worker = Worker(bus.connect(0.03), ttl_ms=600_000)
    bus.fall_silent()
    async with running(worker):
        await until(lambda: worker.publisher.failures >= 1)
        began_s, failures = time.monotonic(), worker.publisher.failures
        while worker.publisher.failures < failures + 3:
            worker.publisher.changed()
            await asyncio.sleep(0.002)
        took_s = time.monotonic() - began_s

    assert took_s >= 3 * 0.1 - 0.03


async def test_a_publish_whose_answer_is_lost_is_followed_by_a_newer_one(real_bus):
    """The server ran a publish after its caller had given up; the next record is stored all the same."""
    worker = Worker(real_bus.connect(0.05))
    await worker.publish()
    real_bus.fall_silent()
    worker.signals = {"inflight": 2}
    await worker.publish()
    real_bus.speak_again()
    worker.signals = {"inflight": 3}
    await worker.publish()

    assert worker.publisher.failures == 1
    await until(lambda: _tells(real_bus, inflight=3))
    assert worker.gave_way == 0


async def test_a_claim_whose_answer_is_lost_is_claimed_again(real_bus):
    """A worker does not take its own unheard claim for a newer worker."""
    client = real_bus.connect(0.05)
    await Worker(client, "b").publish()  # the connection stands and the scripts are loaded
    worker = Worker(client)
    real_bus.fall_silent()
    await worker.publish()
    real_bus.speak_again()
    await until(lambda: _is_registered(real_bus))
    assert worker.publisher.epoch == 0
    await worker.publish()

    assert worker.gave_way == 0
    assert (await entry(real_bus)).epoch == worker.publisher.epoch


async def test_one_publish_is_one_command(real_bus):
    """Once registered, a record costs one EVALSHA and no other round trip."""
    worker = Worker(real_bus.client)
    await worker.publish()
    before = await real_bus.calls()

    for _ in range(10):
        await worker.publish()

    made = await real_bus.calls() - before
    assert made["evalsha"] == 10
    assert made["hset"] == 10
    assert not {"eval", "script|load", "ping", "hrandfield"} & set(made)


async def _tells(bus, *, inflight):
    record = await stored(bus)
    return record is not None and record.inflight == inflight


async def _is_absent(bus):
    return not await bus.client.exists(PRESSURE)


async def _is_registered(bus):
    return await entry(bus) is not None
