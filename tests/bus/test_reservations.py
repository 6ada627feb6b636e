"""Choose and reserve, give back, settle: the scripts on every server, their pure counterpart, and every known race."""

import asyncio
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bus.errors import BusUnavailable
from bus.in_transit import GRACE_MS, MOST_OFFERS, OLDEST_VIEW_US, InTransit, Offer, choose
from bus.keys import reserved_key
from bus.record import LARGEST
from bus.reservations import Reservations, new_reservation_id
from tests.bus.store import FREE, LONGEST_GRACE_MS, Store
from tests.bus.worker import POOL

#: What Lua takes for a number, or would, and no count is.
NO_INTEGER = ("", "abc", "nan", "inf", "-inf", "1.5", "-1", "1e300", "9007199254740992", "1 2")
NO_NUMBER = ("", "abc", "nan", "-nan", "inf", "-inf", "1e301", "1 2")


# --- arguments


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("amount", bad) for bad in ("0", *NO_INTEGER)),
        *(("grace_ms", bad) for bad in ("0", LONGEST_GRACE_MS + 1, *NO_INTEGER)),
        *(("view_us", bad) for bad in NO_INTEGER),
        *(("oldest_us", bad) for bad in NO_INTEGER),
        ("reservation", ""),
    ],
)
async def test_a_reserve_with_a_bad_argument_is_refused_before_it_writes(store, bus, name, bad):
    """No reservation without an id, an amount or an end; nothing expired is dropped either."""
    await store.put("b", old=(50, -1))

    with pytest.raises(BusUnavailable, match=r"ResponseError: .*reserve: "):
        await store.reserve("a", "b", **{name: bad})

    assert await bus.client.keys("*") == [reserved_key(POOL, "b").encode()]
    assert "r:old" in await store.fields("b")


@pytest.mark.parametrize("bad", NO_NUMBER)
@pytest.mark.parametrize("place", range(5))
async def test_an_offer_with_a_number_that_is_none_is_refused_before_anything_is_written(store, bus, place, bad):
    """The last offer is looked at before the first key is touched."""
    offer = [*FREE[:place], bad, *FREE[place + 1 :]]

    with pytest.raises(BusUnavailable, match=r"ResponseError: .*reserve: "):
        await store.reserve("a", "b", offers=[FREE, offer])

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("offers", [[], [FREE], [FREE, FREE[:4]], [FREE, FREE, FREE], [FREE, (*FREE, "0")]])
async def test_offers_that_do_not_fit_the_keys_are_refused(store, bus, offers):
    """Five numbers for each key, no more and no less."""
    with pytest.raises(BusUnavailable, match=r"ResponseError: .*reserve: "):
        await store.reserve("a", "b", offers=offers)

    assert await bus.client.dbsize() == 0


async def test_no_offer_and_no_id_are_refused(store):
    """There is nothing to choose from, and nothing to give back."""
    with pytest.raises(BusUnavailable, match=r"ResponseError: .*reserve: "):
        await store.reserve()
    with pytest.raises(BusUnavailable, match=r"ResponseError: .*give_back: "):
        await store.give_back("a", "")


# --- the choice


async def test_of_equal_offers_the_first_is_chosen(store):
    """The order is the caller's own rotation."""
    offers = [("2", *FREE[1:]), FREE, FREE]

    assert await store.reserve("c", "b", "a", offers=offers) == [2, b"2", 0, 0, b"0", 0, 0, b"0", 0, 0]
    assert await store.sums("b") == InTransit(100, 1)


async def test_sixteen_offers_are_compared_in_one_call(store):
    """The best is the last of them."""
    names = [f"i{number}" for number in range(MOST_OFFERS)]

    reply = await store.reserve(*names, offers=[(str(20 - number), *FREE[1:]) for number in range(MOST_OFFERS)])

    assert reply[0] == MOST_OFFERS
    assert await store.sums(names[-1]) == InTransit(100, 1)


FINITE = st.floats(-1e15, 1e15, allow_nan=False)
SUMS = st.one_of(
    st.just(InTransit()),
    st.builds(InTransit, st.integers(2**20, LARGEST), st.integers(1, 2**20)),
    st.builds(InTransit, st.integers(1, 20_000), st.integers(1, 20)),
)
OFFER = st.builds(Offer, st.just(""), FINITE, FINITE, FINITE, st.integers(0, LARGEST), st.integers(0, 2**20))


@given(st.lists(st.tuples(OFFER, SUMS), min_size=1, max_size=5))
@example([(Offer("", -0.0, 0.0, 0.0, 0, 0), InTransit()), (Offer("", 0.0, 0.0, 0.0, 0, 0), InTransit())])
@example(
    [(Offer("", 0.1, 0.1, 0.1, 3, 3), InTransit(LARGEST, 1)), (Offer("", 1 / 3, 1e-300, 5e-324, 0, 0), InTransit())]
)
@example(
    [(Offer("", 1e299, 1e299, -1e299, 0, 0), InTransit(LARGEST, 2**20)), (Offer("", 1.0, 0.0, 0.0, 0, 0), InTransit())]
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_script_chooses_as_the_pure_function_does(bus, pairs):
    """The same choice, and every score the same to the last digit."""
    client, reservations = bus.client, Reservations(bus.client, POOL)
    offers = [Offer(f"i{at}", *list_of(offer)[1:]) for at, (offer, _) in enumerate(pairs)]
    sums = [each for _, each in pairs]
    seconds, microseconds = await client.time()
    now_us = int(seconds) * 1_000_000 + int(microseconds)
    await client.flushall()
    for offer, each in zip(offers, sums, strict=True):
        if each.requests:
            fields = {"tokens": each.tokens, "requests": each.requests, "oldest": now_us + 30_000_000}
            await client.hset(reserved_key(POOL, offer.instance), mapping=fields)

    reserved = await reservations.choose(offers, reservation="x", tokens=1, view_us=now_us + 30_000_000)

    expected = choose(offers, sums)
    assert (reserved.index, reserved.sums) == (expected.index, expected.sums)
    assert [as_text(score) for score in reserved.scores] == [as_text(score) for score in expected.scores]


def list_of(offer: Offer) -> list:
    """Values of an offer."""
    return [getattr(offer, name) for name in Offer.__struct_fields__]


def as_text(score: float) -> str:
    """All digits of a score; whatever is no number is one thing."""
    return "nan" if math.isnan(score) else score.hex()


@given(st.lists(st.tuples(OFFER, SUMS), min_size=1, max_size=16))
def test_the_pure_choice_is_the_first_of_the_lowest(pairs):
    """No earlier offer has as low a score."""
    chosen = choose([offer for offer, _ in pairs], [sums for _, sums in pairs])

    assert all(score > chosen.scores[chosen.index] for score in chosen.scores[: chosen.index])
    assert min(chosen.scores) == chosen.scores[chosen.index]


async def test_replicas_that_choose_in_the_same_instant_see_each_other(bus):
    """Forty choices of ten replicas by one and the same old view end ten, ten, ten and ten."""
    replicas = [Reservations(bus.connect(), POOL) for _ in range(10)]
    view_us = await Store(bus.client).young_us()
    offers = [Offer(name, 0.0, 0.001, 0.0, 0, 0) for name in "abcd"]

    choices = [
        replica.choose(offers, reservation=new_reservation_id(), tokens=500, view_us=view_us)
        for replica in replicas
        for _ in range(4)
    ]
    chosen = [reserved.index for reserved in await asyncio.gather(*choices)]

    assert sorted(map(chosen.count, range(4))) == [10, 10, 10, 10]


# --- amounts, times, lives


async def test_amounts_and_sums_are_exact_up_to_2_to_the_53(store):
    """Two amounts that add up to 2**53 - 1 are told apart from their neighbours, and subtract to the last token."""
    await store.reserve("a", reservation="large", amount=LARGEST - 7)
    await store.reserve("a", reservation="small", amount=7)

    assert await store.sums() == InTransit(LARGEST, 2)
    assert (await store.reserve("a", reservation="small", offers=[FREE]))[2:] == [LARGEST, 2]
    await store.give_back("a", "large")
    assert await store.sums() == InTransit(7, 1)


async def test_sums_beyond_2_to_the_53_stay_there_and_come_back(store):
    """A sum that no longer fits is the largest there is; nothing fails half way, and ending the last ends all."""
    for name in "xyz":
        await store.reserve("a", reservation=name, amount=LARGEST)
    assert await store.sums() == InTransit(LARGEST, 3)

    for name in "xyz":
        await store.give_back("a", name)

    assert await store.sums() == InTransit()
    assert await store.fields() == {}


async def test_an_end_is_stored_to_the_microsecond(store):
    """Grace period after the server's own time, with every digit."""
    before_us = await store.now_us()
    await store.reserve("a", grace_ms=1234)
    after_us = await store.now_us()

    fields = await store.fields()

    amount, expires_us = fields["r:x"].split(";")
    assert amount == "100"
    assert before_us + 1_234_000 <= int(expires_us) <= after_us + 1_234_000
    assert fields["oldest"] == expires_us


async def test_a_key_ends_with_the_grace_period_of_its_last_reservation(store):
    """A short reservation does not shorten the life of a long one, and a long one lengthens it."""
    await store.reserve("a", reservation="x", grace_ms=2000)
    assert 0 < await store.life_ms() <= 2000

    await store.reserve("a", reservation="y", grace_ms=5000)
    await store.reserve("a", reservation="z", grace_ms=1000)

    assert 2000 < await store.life_ms() <= 5000


async def test_a_key_without_an_end_gets_one_with_the_next_reservation(store, bus):
    """Whatever took the end away: nothing lives for ever."""
    await store.put(good=(100, 1000))
    await bus.client.persist(reserved_key(POOL, "a"))

    await store.reserve("a")

    assert 0 < await store.life_ms() <= GRACE_MS


async def test_a_choice_by_a_view_that_is_too_old_does_nothing(store, bus):
    """251 ms of server time after the view nobody waits for the answer: nothing is written, nothing swept."""
    await store.put("b", old=(50, -1))

    reply = await store.reserve("a", "b", view_us=await store.now_us() - OLDEST_VIEW_US - 1000)

    assert reply == [0]
    assert await bus.client.keys("*") == [reserved_key(POOL, "b").encode()]
    assert "r:old" in await store.fields("b")


async def test_a_view_from_the_future_is_young_enough(store):
    """After a fail-over the clock may be behind that of the view."""
    assert (await store.reserve("a", view_us=await store.now_us() + 5_000_000))[0] == 1
