import asyncio

import pytest

from bus.errors import BusUnavailable
from bus.key_limits import KeyLimits, Limits
from bus.keys import api_key_keys

LEASES, SPENT = api_key_keys("team-a")


@pytest.fixture
def limits(bus) -> KeyLimits:
    """Give the limits on each server."""
    return KeyLimits(bus.client)


async def take(limits: KeyLimits, lease: str, limit: Limits, tokens: int = 0) -> tuple[str, bool]:
    """Take one request in; the limit that was reached, and whether it was let in."""
    verdict = await limits.take("team-a", limit, lease=lease, tokens=tokens)
    return verdict.limit, verdict.is_let_in


async def test_no_more_are_let_in_than_may_be_in_flight_and_an_end_makes_room(limits):
    """The third of two is refused until one of them has ended."""
    two = Limits(inflight=2)
    assert [await take(limits, name, two) for name in "abc"] == [("", True), ("", True), ("inflight", False)]
    await limits.settle("team-a", two, lease="a", correction=0)
    assert await take(limits, "c", two) == ("", True)


async def test_keys_of_another_type_are_replaced(bus, limits):
    """Whoever put them there: a request is let in and ended, and the limits hold."""
    one = Limits(inflight=1, tokens_per_minute=100)
    for act in (lambda: take(limits, "a", one, 100), lambda: limits.settle("team-a", one, lease="a", correction=-1)):
        for key in (LEASES, SPENT):
            await bus.client.delete(key)
            await bus.client.set(key, "of another type")
        await act()
        assert not {await bus.client.type(key) for key in (LEASES, SPENT)} & {b"string"}
    await limits.take("team-a", one, lease="b", tokens=100)
    assert await take(limits, "c", one) == ("inflight", False)


async def test_ending_twice_frees_one_place(limits):
    """A late or repeated end changes nothing."""
    one = Limits(inflight=1)
    await take(limits, "a", one)
    for _ in range(2):
        await limits.settle("team-a", one, lease="a", correction=0)
    assert [await take(limits, name, one) for name in "bc"] == [("", True), ("inflight", False)]


async def test_a_hundred_at_once_get_what_there_is(limits):
    """Replicas that ask in the same instant see each other."""
    found = await asyncio.gather(*(take(limits, f"l{number}", Limits(inflight=7)) for number in range(100)))
    assert sum(is_let_in for _, is_let_in in found) == 7


async def test_the_lease_of_a_replica_that_died_expires(limits, bus):
    """Its requests hold no place for ever."""
    one = Limits(inflight=1)
    await take(limits, "dead", one)
    await bus.client.zadd(LEASES, {"dead": 1})  # as if its minute had passed
    assert await take(limits, "b", one) == ("", True)


async def test_a_lease_is_renewed_and_one_that_was_lost_stands_again(limits, bus):
    """The bus may have lost its data; the request runs all the same."""
    await limits.renew("team-a", lease="a")
    assert await take(limits, "b", Limits(inflight=1)) == ("inflight", False)
    assert 0 < await bus.client.pttl(LEASES) <= 61_000


async def test_tokens_are_refused_above_the_limit_with_the_time_to_wait(limits):
    """6 000 a minute are 100 a second: what is 3 000 too much comes in half a minute."""
    limit = Limits(tokens_per_minute=6_000)
    assert await take(limits, "a", limit, 6_000) == ("", True)
    verdict = await limits.take("team-a", limit, lease="b", tokens=3_000)
    assert (verdict.is_let_in, verdict.limit) == (False, "tokens_per_minute")
    assert 20 < verdict.retry_after_s <= 30


async def test_what_was_not_spent_comes_back_and_what_was_spent_beyond_is_taken(limits):
    """The estimate is corrected to what the engine counted, either way."""
    limit = Limits(tokens_per_minute=1_000)
    await take(limits, "a", limit, 1_000)
    await limits.settle("team-a", limit, lease="a", correction=-900)
    assert await take(limits, "b", limit, 800) == ("", True)
    await limits.settle("team-a", limit, lease="b", correction=5_000)
    assert (await limits.take("team-a", limit, lease="c", tokens=1)).retry_after_s > 60


async def test_a_request_larger_than_the_bucket_is_let_in_when_it_is_empty(limits):
    """Else it could never be answered; what comes after it waits the longer."""
    limit = Limits(tokens_per_minute=100)
    assert await take(limits, "a", limit, 5_000) == ("", True)
    assert await take(limits, "b", limit, 5_000) == ("tokens_per_minute", False)


async def test_no_correction_makes_the_spent_negative(limits, bus):
    """More given back than was taken is no credit."""
    limit = Limits(tokens_per_minute=100)
    await limits.settle("team-a", limit, lease="a", correction=-10_000)
    assert float(await bus.client.hget(SPENT, "tokens")) == 0


@pytest.mark.parametrize("rubbish", [b"abc", b"nan", b"inf", b"-5", b""])
async def test_rubbish_in_the_bucket_counts_as_nothing(limits, bus, rubbish):
    """What nobody has written here must shut nobody out."""
    await bus.client.hset(SPENT, mapping={"tokens": rubbish, "at_us": rubbish})
    assert await take(limits, "a", Limits(tokens_per_minute=100), 50) == ("", True)


async def test_keys_have_an_end(limits, bus):
    """A key that is used no more leaves nothing on the bus."""
    await take(limits, "a", Limits(inflight=1, tokens_per_minute=100), 5_000)
    assert await bus.client.pttl(LEASES) > 0
    assert await bus.client.pttl(SPENT) > 60_000


async def test_one_key_knows_nothing_of_another(limits):
    """Each has its own keys on the bus."""
    one = Limits(inflight=1)
    assert await take(limits, "a", one) == ("", True)
    assert (await limits.take("team-b", one, lease="a", tokens=0)).is_let_in


async def test_a_silent_bus_is_said_so(limits, bus):
    """The caller decides alone."""
    bus.fall_silent()
    impatient = KeyLimits(bus.connect(timeout_s=0.2))
    with pytest.raises(BusUnavailable):
        await impatient.take("team-a", Limits(inflight=1), lease="a", tokens=0)
    bus.speak_again()
