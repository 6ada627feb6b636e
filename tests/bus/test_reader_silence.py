import logging
import time

from bus.keys import pressure_key
from bus.reader import PAUSE_AFTER_FAULT_S, RECOVERY_S, REGISTRATIONS_EVERY_S
from tests.bus.reading import fleet, inflight, reader
from tests.bus.worker import POOL, until

# --- when the bus is silent


async def test_a_caller_waits_no_longer_than_its_budget(real_bus):
    """The server hangs and the client's own limit is far away: the last view comes after the budget."""
    await fleet(real_bus, 1)
    one = reader(real_bus, timeout_s=30, budget_s=0.05)
    await until(lambda: _has_seen(one, 1))
    seen = one.last_view
    real_bus.fall_silent()

    began_s = time.monotonic()
    view = await one.view()
    took_s = time.monotonic() - began_s

    assert view is seen
    assert 0.045 <= took_s < 1
    await one.close()


async def test_a_hanging_reading_costs_one_budget_and_not_each_caller_one(real_bus):
    """Twenty selections one after the other lose one budget together, not twenty."""
    await fleet(real_bus, 1)
    one = reader(real_bus, timeout_s=30, budget_s=0.1)
    await until(lambda: _has_seen(one, 1))
    real_bus.fall_silent()

    began_s = time.monotonic()
    for _ in range(20):
        await one.view()
    took_s = time.monotonic() - began_s

    assert 0.095 <= took_s < 1
    await one.close()


async def test_a_dead_bus_is_asked_once_a_pause(bus, clock):
    """After a failed reading calls return at once until the pause is over."""
    await fleet(bus, 1)
    one = reader(bus, timeout_s=0.05, clock=clock)
    seen = await one.view()
    bus.fall_silent()
    await one.view()
    assert one.read_failures == 1

    for _ in range(100):
        assert await one.view() is seen
    assert one.read_failures == 1

    clock.move(PAUSE_AFTER_FAULT_S)
    await one.view()
    assert one.read_failures == 2


async def test_the_last_view_is_kept_until_its_records_expire(bus, clock):
    """A second of silence leaves numbers that age; two leave instances of which nothing is known."""
    await fleet(bus, 1, ttl_ms=1500)
    one = reader(bus, timeout_s=0.05, clock=clock)
    await one.view()
    bus.fall_silent()

    clock.move(1.0)
    (aged,) = (await one.view()).live(clock())
    clock.move(1.0)
    (unknown,) = (await one.view()).live(clock())

    assert aged.signal("inflight") == 0
    assert aged.signal("predicted_wait_ms") == 500  # one heartbeat less, not a second
    assert unknown.signal("inflight") is None
    assert unknown.registration.worker_url == "http://worker-i0:1"


async def test_an_hour_of_silence_empties_no_pool(bus, clock):
    """Registrations cannot be renewed while the bus is silent, so they do not expire by its silence."""
    await fleet(bus, 2)
    one = reader(bus, timeout_s=0.05, clock=clock)
    await one.view()
    bus.fall_silent()

    clock.move(3600)
    await one.view()

    assert [p.record for p in one.last_view.live(clock())] == [None, None]


async def test_after_an_outage_registrations_stand_until_workers_could_renew_them(bus, clock):
    """The bus comes back with entries that expired meanwhile: they count for two seconds more, then no longer."""
    worker, dead = await fleet(bus, 2)
    one = reader(bus, timeout_s=0.05, clock=clock)
    await one.view()
    bus.fall_silent()
    await one.view()
    clock.move(REGISTRATIONS_EVERY_S)
    bus.speak_again()
    for each in (worker, dead):
        await each.publisher._announce(each.registration, 0)  # as if it had run out during the outage

    assert set(await inflight(one)) == {"i0", "i1"}

    await worker.publisher._announce(worker.registration, 30)
    clock.move(RECOVERY_S)
    assert set(await inflight(one)) == {"i0"}


async def test_a_replica_started_on_a_silent_bus_sees_nothing_and_fails_nothing(bus, clock):
    """Before the first reading the view is empty and the state blind."""
    bus.fall_silent()
    one = reader(bus, timeout_s=0.05, clock=clock)

    view = await one.view()

    assert view.live(clock()) == []
    assert one.state(clock()) == "blind"
    assert one.read_failures == 1

    bus.speak_again()
    await fleet(bus, 1)
    clock.move(PAUSE_AFTER_FAULT_S)
    assert await inflight(one) == {"i0": 0}
    assert one.state(clock()) == "fresh"


async def test_the_state_goes_from_fresh_over_stale_to_blind_and_back(bus, clock):
    """Stale while an old view still tells something, blind when it does not."""
    await fleet(bus, 1, ttl_ms=1500)
    one = reader(bus, timeout_s=0.05, clock=clock)
    await one.view()
    assert one.state(clock()) == "fresh"

    bus.fall_silent()
    await one.view()
    assert one.state(clock()) == "stale"

    clock.move(1.6)
    assert one.state(clock()) == "blind"

    bus.speak_again()
    await one.view()
    assert one.state(clock()) == "fresh"


async def test_only_changes_of_state_are_logged(bus, clock, caplog):
    """Ten failed readings and ten good ones make two lines."""
    await fleet(bus, 1)
    one = reader(bus, timeout_s=0.02, clock=clock)
    await one.view()
    bus.fall_silent()
    for _ in range(10):
        await one.view()
        clock.move(PAUSE_AFTER_FAULT_S)
    bus.speak_again()
    for _ in range(10):
        await one.view()

    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert one.read_failures == 10
    assert len(said) == 2
    assert "does not answer" in said[0]
    assert "answers again" in said[1]


async def test_a_server_that_forgot_its_scripts_is_read_all_the_same(real_bus):
    """After a restart or SCRIPT FLUSH the next reading loads the script anew."""
    await fleet(real_bus, 1)
    one = reader(real_bus)
    await one.view()
    await real_bus.client.script_flush()

    assert await inflight(one) == {"i0": 0}
    assert one.read_failures == 0


async def test_close_ends_a_reading_under_way(real_bus):
    """A replica that stops leaves no task behind, even on a hanging server."""
    one = reader(real_bus, timeout_s=30, budget_s=0.01)
    real_bus.fall_silent()
    await one.view()
    reading = one._reading

    await one.close()

    assert reading.done()
    assert one._reading is None


async def test_every_third_record_of_a_large_pool_may_be_broken(bus):
    """Exactly the broken ones are unknown."""
    workers = await fleet(bus, 60)
    for number, worker in enumerate(workers):
        if number % 3 == 0:
            await bus.client.hset(pressure_key(POOL, worker.publisher.instance), "record", b"\xc1")

    seen = await inflight(reader(bus))

    assert {name for name, value in seen.items() if value is None} == {f"i{n}" for n in range(0, 60, 3)}


async def _has_seen(one, count):
    return len((await one.view()).readings) == count
