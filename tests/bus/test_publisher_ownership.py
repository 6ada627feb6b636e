import asyncio
import logging
import time

from bus.registration import encode_registration
from tests.bus.publishing import entry, running, stored
from tests.bus.worker import INSTANCES, PRESSURE, Worker, registration, until


async def _claimed_ahead_of_the_clock(bus) -> int:
    """An epoch as a server whose clock is an hour ahead has given it, in an entry of its own."""
    epoch = int(time.time() + 3600) * 1_000_000
    await bus.client.hset(INSTANCES, "a", b"%d;%d;" % (epoch, epoch) + encode_registration(registration("a")))
    return epoch


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
