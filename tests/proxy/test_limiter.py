"""What a replica counts for a key, where the bus and the replica part: cancelled, alone, or back again."""

import asyncio

import pytest

from bus.errors import BusUnavailable
from bus.key_limits import LEASE_MS, KeyLimits, Limits
from bus.keys import api_key_keys
from proxy.keys import ApiKey
from proxy.limiter import PAUSE_S, Limiter, RateLimited

KEY = ApiKey("team-a", b"", Limits(inflight=9, tokens_per_minute=1000))
LEASES, SPENT = api_key_keys(KEY.name)


@pytest.fixture
async def limiter(bus, clock):
    """Give a replica's limiter on a bus that may fall silent."""
    one = Limiter(bus.connect(0.1), clock=clock)
    yield one
    await one.close()


async def spent(bus) -> float:
    """Give what the bus has counted for the key; some drains while the test runs."""
    return float(await bus.client.hget(SPENT, "tokens") or 0)


def answer_late(monkeypatch) -> None:
    """Let the bus do what it is asked to, and its answer miss the limit."""
    take = KeyLimits.take

    async def late(limits, *args, **named):
        await take(limits, *args, **named)
        raise BusUnavailable("too late", is_late=True)

    monkeypatch.setattr(KeyLimits, "take", late)


async def test_what_was_spent_beyond_the_estimate_is_counted_by_all(limiter, bus):
    """And by nobody twice."""
    lease = await limiter.take(KEY, 100)
    limiter.end(lease, 300)
    limiter.end(lease, 300)
    await limiter.close()
    assert 290 <= await spent(bus) <= 300
    assert await bus.client.zcard(LEASES) == 0


async def test_what_was_let_in_alone_is_counted_whole_when_the_bus_is_back(limiter, bus, clock):
    """All of it, since nothing of it was taken there."""
    bus.fall_silent()
    first = await limiter.take(KEY, 1)
    lease = await limiter.take(KEY, 100)  # not even asked for
    assert (lease.tokens, lease.shared_tokens, limiter.failures) == (100, 0, 1)
    bus.speak_again()
    clock.move(PAUSE_S)
    limiter.end(first, 1)
    limiter.end(lease, 300)
    await limiter.close()
    assert 290 <= await spent(bus) <= 302


async def test_what_the_bus_counted_and_said_too_late_is_not_counted_again(limiter, bus, monkeypatch):
    """The replica lets it in alone, and settles what differs."""
    answer_late(monkeypatch)
    lease = await limiter.take(KEY, 400)
    limiter.end(lease, 450)
    await limiter.close()
    assert 440 <= await spent(bus) <= 450
    assert await bus.client.zcard(LEASES) == 0


async def test_who_is_refused_alone_holds_no_place_on_the_bus_that_answers_late(limiter, bus, clock, monkeypatch):
    """Its lease ends at once, not after a minute."""
    bus.fall_silent()
    for _ in range(9):
        await limiter.take(KEY, 1)
    bus.speak_again()
    clock.move(PAUSE_S)
    answer_late(monkeypatch)
    with pytest.raises(RateLimited, match="inflight"):
        await limiter.take(KEY, 1)
    await limiter.close()
    assert await bus.client.zcard(LEASES) == 0


async def test_a_request_that_left_while_it_was_let_in_holds_no_place(limiter, bus, monkeypatch):
    """Whether the bus had counted it or not: its tokens stay as they are, and its lease ends."""
    await limiter.take(KEY, 500)
    is_taken, take = asyncio.Event(), KeyLimits.take

    async def stalled(limits, *args, **named):
        await take(limits, *args, **named)
        is_taken.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(KeyLimits, "take", stalled)
    leaving = asyncio.create_task(limiter.take(KEY, 400))
    await is_taken.wait()
    assert await bus.client.zcard(LEASES) == 2
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await limiter.close()
    assert await bus.client.zcard(LEASES) == 1
    assert 890 <= await spent(bus) <= 900


async def test_leases_that_are_due_are_renewed_at_once(limiter, bus, clock):
    """One that the bus has lost stands again; none of a request that has ended comes back."""
    kept, ended = [await limiter.take(KEY, 1) for _ in range(2)]
    limiter.end(ended, 1)
    await limiter.close()
    await bus.client.delete(LEASES)
    clock.move(LEASE_MS / 1000)
    await limiter.renew()
    assert await bus.client.zrange(LEASES, 0, -1) == [kept.id.encode()]


async def test_over_the_limit_says_which_and_when(limiter):
    """In the words of the key's file."""
    await limiter.take(KEY, 1000)
    with pytest.raises(RateLimited, match="tokens_per_minute") as refused:
        await limiter.take(KEY, 100)
    assert 0 < refused.value.retry_after_s <= 60
