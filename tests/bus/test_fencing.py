import asyncio

import pytest

from bus.record import LARGEST
from tests.bus.calls import Scripts, _server_us
from tests.bus.worker import INSTANCES, PRESSURE

# --- fencing


async def test_a_newer_epoch_wins_and_an_older_one_is_told_by_whom(scripts):
    """The refusal names the epoch that owns the instance."""
    assert (await scripts.publish(epoch=8))[0] == 1

    assert await scripts.publish(epoch=7) == [0, b"8"]
    assert (await scripts.publish(epoch=9))[0] == 1


async def test_epochs_are_compared_as_numbers(scripts):
    """9 is less than 10, though not as text."""
    assert (await scripts.publish(epoch=9, sequence=9))[0] == 1
    assert (await scripts.publish(epoch=9, sequence=10))[0] == 1
    assert (await scripts.publish(epoch=10, sequence=1))[0] == 1
    assert await scripts.publish(epoch=9, sequence=11) == [0, b"10"]


@pytest.mark.parametrize("sequence", [3, 2, 0])
async def test_a_record_that_comes_late_is_not_stored(scripts, bus, sequence):
    """Of one worker's records the one with the higher number stays."""
    await scripts.publish(record=b"newer", sequence=3)

    assert await scripts.publish(record=b"older", sequence=sequence) == [0, b"7"]
    assert await bus.client.hget(PRESSURE, "record") == b"newer"


async def test_the_largest_epochs_are_told_apart(scripts, bus):
    """2**53 - 1 and 2**53 - 2 go through Lua and back to the last digit."""
    await scripts.publish(epoch=LARGEST, sequence=LARGEST)

    assert await bus.client.hget(PRESSURE, "epoch") == str(LARGEST).encode()
    assert await bus.client.hget(PRESSURE, "sequence") == str(LARGEST).encode()
    assert await scripts.publish(epoch=LARGEST - 1) == [0, str(LARGEST).encode()]
    assert await scripts.register(epoch=LARGEST - 1) == [0, str(LARGEST).encode()]
    assert await scripts.register(epoch=LARGEST) == [1, str(LARGEST).encode()]


async def test_claims_at_once_get_different_epochs(bus):
    """Twenty workers that claim one instance in the same instant are told apart."""
    many = [Scripts(bus.connect()) for _ in range(20)]

    answers = await asyncio.gather(*(each.register() for each in many))

    assert all(is_stored == 1 for is_stored, _ in answers)
    assert len({epoch for _, epoch in answers}) == 20


async def test_a_claim_is_above_everything_that_is_stored(scripts):
    """Neither the registration nor the record of an earlier worker can refuse a new one."""
    _, first = await scripts.register()
    await scripts.publish(epoch=int(first) + 1_000_000_000)

    _, second = await scripts.register()

    assert int(second) == int(first) + 1_000_000_001
    assert (await scripts.publish(epoch=int(second)))[0] == 1


async def test_epochs_grow_across_a_loss_of_all_data(scripts, bus):
    """The server's time stands in for what FLUSHALL took."""
    _, before = await scripts.register()
    await bus.client.flushall()

    _, after = await scripts.register()

    assert int(after) > int(before)


async def test_an_older_worker_is_refused_while_the_newer_ones_registration_stands(scripts, bus):
    """The record of the newer worker has expired; its registration still fences the older one off."""
    _, older = await scripts.register()
    _, newer = await scripts.register()
    await scripts.publish(epoch=int(newer))
    await bus.client.delete(PRESSURE)  # as its expiry does

    assert await scripts.publish(epoch=int(older)) == [0, newer]
    assert await scripts.register(epoch=int(older)) == [0, newer]


async def test_publish_says_whether_a_living_registration_stands(scripts, bus):
    """Missing, expired and another worker's registration all mean: register again."""
    _, epoch = await scripts.register()
    assert await scripts.publish(epoch=int(epoch), sequence=1) == [1, 1, 0]

    await scripts.register(epoch=int(epoch), lifetime_ms=0)
    assert await scripts.publish(epoch=int(epoch), sequence=2) == [1, 0, 0]

    await bus.client.delete(INSTANCES)
    assert await scripts.publish(epoch=int(epoch), sequence=3) == [1, 0, 0]

    await scripts.register(epoch=int(epoch))
    assert await scripts.publish(epoch=int(epoch) + 1, sequence=4) == [1, 0, 0]


RUBBISH = ["", "abc", "nan", "inf", "-inf", "-5", "1.5", "9" * 30, str(2**53), "0x"]


@pytest.mark.parametrize("rubbish", RUBBISH)
async def test_rubbish_in_place_of_an_epoch_locks_nobody_out(scripts, bus, rubbish):
    """What no worker wrote neither refuses a worker nor spoils the next epoch."""
    await bus.client.hset(PRESSURE, mapping={"epoch": rubbish, "sequence": rubbish})
    await bus.client.hset(INSTANCES, "a", f"{rubbish};{rubbish};payload")

    is_stored, epoch = await scripts.register()

    assert is_stored == 1
    assert 0 < int(epoch) <= LARGEST
    assert await scripts.publish(epoch=int(epoch)) == [1, 1, 0]


# --- memory and purge


async def test_an_expired_entry_is_remembered_and_one_long_expired_is_purged(scripts, bus):
    """Ten minutes after its end an entry goes with some renewal of another instance, not before."""
    now_us = await _server_us(bus)
    for age_s in (599, 601):
        await bus.client.hset(INSTANCES, f"{age_s}", f"7;{now_us - age_s * 1_000_000};payload")
    await bus.client.hset(INSTANCES, "rubbish", "rubbish")

    for _ in range(3):  # each looks at four of at most four
        await scripts.register(instance="b")

    assert set(await bus.client.hkeys(INSTANCES)) == {b"b", b"599"}


async def test_many_long_gone_entries_go_by_and_by(scripts, bus):
    """Renewals clear a hash of a hundred dead instances, a few each time."""
    old_us = await _server_us(bus) - 700_000_000
    await bus.client.hset(INSTANCES, mapping={f"i{number}": f"7;{old_us};p" for number in range(100)})

    for _ in range(400):
        await scripts.register(instance="b")
        if await bus.client.hlen(INSTANCES) == 1:
            break

    assert await bus.client.hkeys(INSTANCES) == [b"b"]
