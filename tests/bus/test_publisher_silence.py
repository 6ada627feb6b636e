import asyncio
import time

from tests.bus.publishing import _is_registered, _tells, entry, running
from tests.bus.worker import Worker, until


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
