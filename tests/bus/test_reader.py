import asyncio

import pytest

from bus.keys import instances_key, pressure_key
from bus.reader import REGISTRATIONS_EVERY_S
from bus.registration import encode_registration
from tests.bus.reading import fleet, inflight, reader
from tests.bus.worker import POOL, Worker, lately_served, registration, until

INSTANCES = instances_key(POOL)


async def test_the_first_view_shows_the_whole_pool(bus):
    """A replica that has just started sees every instance with its signals and its address."""
    await fleet(bus, 5)

    view = await reader(bus).view()

    live = view.live(view.read_at_s)
    assert {p.instance: p.signal("inflight") for p in live} == {f"i{n}": n for n in range(5)}
    assert {p.registration.worker_url for p in live} == {f"http://worker-i{n}:1" for n in range(5)}
    assert all(p.fault is None and 0 <= p.age_ms < 60_000 for p in live)


async def test_an_empty_bus_is_an_empty_pool(bus):
    """Nobody has registered: that is known, and no fault."""
    one = reader(bus)

    assert await inflight(one) == {}
    assert one.read_failures == 0
    assert not one.faults


async def test_a_pool_sees_nothing_of_another(bus):
    """Instances of the same name in two pools are two instances."""
    for pool, count in ((POOL, 1), ("other", 2)):
        worker = Worker(bus.client, pool=pool)
        worker.signals = {"inflight": count}
        await worker.publish()

    assert await inflight(reader(bus)) == {"a": 1}


@pytest.mark.parametrize("count", [1, 30])
async def test_a_view_of_a_pool_is_one_round_trip(real_bus, clock, count):
    """However many instances there are, a view costs one EVALSHA, and half a second passes between two listings."""
    await fleet(real_bus, count)
    one = reader(real_bus, clock=clock)
    await one.view()
    before = await real_bus.calls()

    for _ in range(10):
        await one.view()

    made = await real_bus.calls() - before
    assert made["evalsha"] == 10
    assert set(made) <= {"evalsha", "hmget", "hstrlen", "time", "info"}  # the rest runs inside the script


async def test_concurrent_callers_share_one_reading(bus):
    """A hundred selections at once cost what one costs, and see the same."""
    await fleet(bus, 3)
    one = reader(bus)
    await one.view()
    before = one.reads

    views = await asyncio.gather(*(one.view() for _ in range(100)))

    assert one.reads == before + 1
    assert len({id(view) for view in views}) == 1


async def test_a_caller_that_leaves_does_not_end_the_reading_of_the_others(bus):
    """One client goes away; the selection of another still gets its view."""
    await fleet(bus, 3)
    one = reader(bus)
    leaves, stays = asyncio.create_task(one.view()), asyncio.create_task(one.view())
    await asyncio.sleep(0)  # both wait for the same reading
    leaves.cancel()

    view = await stays

    assert len(view.readings) == 3
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_what_is_published_is_in_the_next_view(bus):
    """Nothing is cached between two views but what has not changed."""
    (worker, _) = await fleet(bus, 2)
    one = reader(bus)
    await one.view()

    for count in (5, 0, 9):
        worker.signals = {"inflight": count}
        await worker.publish()
        assert await inflight(one) == {"i0": count, "i1": 1}


async def test_a_new_instance_is_seen_with_the_next_listing(bus, clock):
    """Registrations are listed every half second."""
    await fleet(bus, 1)
    one = reader(bus, clock=clock)
    await one.view()
    await Worker(bus.client, "new").publish()

    assert "new" not in await inflight(one)
    clock.move(REGISTRATIONS_EVERY_S)
    assert (await inflight(one))["new"] == 1


async def test_a_restarted_worker_is_known_by_its_new_address_one_view_later(bus, clock):
    """A record of a newer epoch makes the reader list the registrations at once."""
    await fleet(bus, 1)
    one = reader(bus, clock=clock)
    await one.view()
    successor = Worker(bus.client, "i0")
    successor.registration = registration("b")
    await successor.publish()

    (between,) = (await one.view()).live(clock())
    (after,) = (await one.view()).live(clock())

    assert between.record is None
    assert between.fault == "epoch of another worker"
    assert after.registration.worker_url == "http://worker-b:1"
    assert after.signal("inflight") == 1


async def test_the_record_of_an_older_epoch_does_not_make_the_reader_list_again_and_again(real_bus, clock):
    """A worker that has registered and not published yet costs no listing a view."""
    (older,) = await fleet(real_bus, 1)
    newer = Worker(real_bus.client, "i0")
    await newer.publisher._announce(newer.registration, 30)
    one = reader(real_bus, clock=clock)
    await one.view()
    before = await real_bus.calls()

    views = [await one.view() for _ in range(5)]

    assert (await real_bus.calls() - before)["hgetall"] == 0
    assert [view.live(clock())[0].fault for view in views] == ["epoch of another worker"] * 5
    assert older.publisher.epoch < newer.publisher.epoch


async def test_an_instance_that_withdraws_leaves_and_its_models_are_remembered(bus, clock):
    """Gone is known with the next listing; what it served is known for ten minutes."""
    worker, _ = await fleet(bus, 2)
    one = reader(bus, clock=clock)
    await one.view()
    await worker.publisher.withdraw(registration("i0", state="gone"))

    clock.move(REGISTRATIONS_EVERY_S)

    assert await inflight(one) == {"i1": 1}
    assert lately_served(one.last_view) == {"model-i0", "model-i1"}


async def test_what_expired_ten_minutes_ago_is_forgotten(bus, clock):
    """Nine minutes after its end an instance's models are remembered, eleven minutes after no longer."""
    await fleet(bus, 1)
    now_us = int((await bus.client.time())[0]) * 1_000_000
    for minutes in (9, 11):
        name = f"m{minutes}"
        value = f"7;{now_us - minutes * 60_000_000};".encode() + encode_registration(registration(name))
        await bus.client.hset(INSTANCES, name, value)
    one = reader(bus, clock=clock)

    await one.view()

    assert lately_served(one.last_view) == {"model-i0", "model-m9"}
    assert set(await inflight(one)) == {"i0"}


async def test_an_expired_key_is_unknown_and_not_zero(bus):
    """A worker that was killed is still registered, and nothing is known of it."""
    await fleet(bus, 2)
    one = reader(bus)
    await one.view()
    await bus.client.pexpire(pressure_key(POOL, "i1"), 1)
    await until(lambda: _is_absent(bus, "i1"))

    assert await inflight(one) == {"i0": 0, "i1": None}
    assert one.faults["missing"] == 1


async def test_a_record_older_than_its_ttl_is_unknown_though_its_key_stands(bus, clock):
    """Somebody took the end off the key: the age decides, by the server's clock."""
    worker = Worker(bus.client)
    await worker.publish()
    await bus.client.persist(pressure_key(POOL, "a"))
    one = reader(bus, clock=clock)
    assert await inflight(one) == {"a": 1}

    assert (await inflight(one, clock() + 1.0)) == {"a": 1}
    assert (await inflight(one, clock() + 1.6)) == {"a": None}


async def test_an_age_beyond_the_ttl_is_counted_once_a_record(bus, clock):
    """Ten views of one stale record are one fault, the next stale record is another."""
    worker = Worker(bus.client)
    await worker.publish()
    key = pressure_key(POOL, "a")
    published_us = int(await bus.client.hget(key, "published_us"))
    await bus.client.persist(key)
    one = reader(bus, clock=clock)

    for ago_s in (10, 20):
        await bus.client.hset(key, "published_us", published_us - ago_s * 1_000_000)
        for _ in range(10):
            assert await inflight(one) == {"a": None}

    assert one.faults == {"expired": 2}


async def test_after_a_loss_of_all_data_the_instances_stay_and_are_unknown(bus, clock):
    """FLUSHALL empties no pool: addresses are kept until they expire, signals are not made up."""
    workers = await fleet(bus, 2)
    one = reader(bus, clock=clock)
    await one.view()
    await bus.client.flushall()

    clock.move(REGISTRATIONS_EVERY_S)
    assert await inflight(one) == {"i0": None, "i1": None}

    for worker in workers:
        await worker.publish()
    assert await inflight(one) == {"i0": 0, "i1": 1}


async def _is_absent(bus, instance):
    return not await bus.client.exists(pressure_key(POOL, instance))
