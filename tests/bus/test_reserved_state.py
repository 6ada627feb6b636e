import pytest

from bus.in_transit import InTransit
from bus.keys import reserved_key
from tests.bus.store import FREE
from tests.bus.worker import POOL

#: What somebody may have put in place of a sum; None: nothing.
RUBBISH = (None, "", "rubbish", "-5", "1.5", "nan", "inf", "9" * 30)


# --- what has expired


async def test_what_has_expired_is_not_counted_before_anybody_drops_it(store):
    """A reader is told the rest, and writes nothing."""
    await store.put(old=(70, -1), good=(100, 1000))

    assert await store.sums() == InTransit(100, 1)
    assert set(await store.fields()) == {"tokens", "requests", "oldest", "r:old", "r:good"}


TOUCHES = {
    "reserve": lambda store: store.reserve("b", "a", offers=[FREE, ("1", *FREE[1:])]),
    "give back": lambda store: store.give_back("a", "another"),
    "publish": lambda store: store.publish("a"),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
async def test_what_has_expired_is_dropped_by_whoever_comes_next(store, touch):
    """Field and sum go, what has not expired stays."""
    await store.put(old=(70, -1), good=(100, 1000))

    await touch(store)

    fields = await store.fields()
    assert (fields["tokens"], fields["requests"]) == ("100", "1")
    assert set(fields) == {"tokens", "requests", "oldest", "r:good"}
    assert fields["oldest"] == fields["r:good"].split(";")[1]


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
async def test_where_all_has_expired_the_key_goes(store, touch):
    """Nothing is left to be read."""
    await store.put(old=(70, -1), older=(70, -1000))

    await touch(store)

    assert await store.fields() == {}


# --- what nobody wrote


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("name", ["tokens", "requests", "oldest"])
async def test_a_spoilt_sum_is_made_anew(store, bus, name, rubbish, touch):
    """A reader is told the right sums at once, and whoever writes next heals the hash."""
    await store.put(good=(100, 1000), other=(20, 1500))
    if rubbish is None:
        await bus.client.hdel(reserved_key(POOL, "a"), name)
    else:
        await bus.client.hset(reserved_key(POOL, "a"), name, rubbish)
    assert await store.sums() == InTransit(120, 2)

    await touch(store)

    fields = await store.fields()
    assert (fields["tokens"], fields["requests"]) == ("120", "2")
    assert fields["oldest"] == fields["r:good"].split(";")[1]


@pytest.mark.parametrize(
    "rubbish", [*(each for each in RUBBISH if each is not None), "1;y", ";", "0;{later}", "-3;{later}"]
)
async def test_a_spoilt_reservation_counts_for_nothing_and_goes(store, bus, rubbish):
    """With the next count of the hash, whoever makes it."""
    await store.put(good=(100, 1000), old=(1, -1))
    later = await store.now_us() + 1_000_000
    await bus.client.hset(reserved_key(POOL, "a"), "r:bad", rubbish.format(later=later))
    assert await store.sums() == InTransit(100, 1)

    await store.publish("a")

    assert set(await store.fields()) == {"tokens", "requests", "oldest", "r:good"}


async def test_ending_a_spoilt_reservation_makes_the_sums_anew(store, bus):
    """Nobody knows what it had added."""
    await store.put(good=(100, 1000), bad=(20, 1000))
    await bus.client.hset(reserved_key(POOL, "a"), "r:bad", "rubbish")

    assert await store.give_back("a", "bad") == 1

    assert await store.sums() == InTransit(100, 1)


async def test_rubbish_in_place_of_a_reservation_does_not_keep_it_from_being_made(store, bus):
    """Only a reservation that stands is not made again."""
    await store.put(good=(100, 1000))
    await bus.client.hset(reserved_key(POOL, "a"), "r:x", "rubbish")

    await store.reserve("a", reservation="x", amount=20)

    assert await store.sums() == InTransit(120, 2)


async def test_sums_that_are_too_low_never_become_negative(store, bus):
    """Ending more than the sums say counts anew what is left."""
    await store.put(x=(100, 1000), y=(100, 1000), z=(30, 1000))
    await bus.client.hset(reserved_key(POOL, "a"), mapping={"tokens": 5, "requests": 1})

    await store.give_back("a", "x")

    assert await store.sums() == InTransit(130, 2)


async def test_a_reservation_from_before_the_clock_was_set_back_is_dropped(store):
    """It would stand for an hour under steady traffic; no reservation may end later than a minute from now."""
    await store.put(life_ms=3_700_000, ahead=(100, 3_600_000), good=(20, 1000))
    await store.put("b", life_ms=3_700_000, ahead=(100, 3_600_000))

    await store.publish("b")
    await store.reserve("a", "b", offers=[("1", *FREE[1:]), FREE])

    assert await store.fields("b") != {}
    assert await store.sums("b") == InTransit(100, 1)


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
async def test_a_key_of_another_type_is_no_reservation_and_goes(store, bus, touch):
    """It would stand for ever and fail every choice in which its instance is offered; readers count nothing there."""
    await bus.client.set(reserved_key(POOL, "a"), "no hash")
    assert await store.sums() == InTransit()

    await touch(store)

    assert await bus.client.exists(reserved_key(POOL, "a")) == 0


async def test_a_key_of_another_type_hurts_no_choice(store, bus):
    """Its instance is chosen as one to which nothing is in transit, and reserved at."""
    await bus.client.rpush(reserved_key(POOL, "a"), "no", "hash")
    await store.put("b", good=(100, 1000))

    reply = await store.reserve("b", "a", offers=[("0", "1", "0", "0", "0")] * 2)

    assert reply == [2, b"100", 100, 1, b"0", 0, 0]
    assert await store.sums() == InTransit(100, 1)
