import asyncio
import logging
import math

from bus.in_transit import InTransit, Offer, Reserved
from bus.reservations import LONGEST_PAUSE_S, Reservations, new_reservation_id
from tests.bus.store import AB, Store
from tests.bus.worker import POOL


async def test_a_bus_that_does_not_answer_leaves_the_choice_to_the_replica(bus):
    """None within the client's limit, counted once; nothing is tried again."""
    reservations = Reservations(bus.connect(timeout_s=0.05), POOL)
    bus.fall_silent()

    async with asyncio.timeout(5):
        assert await reservations.choose(AB, reservation="x", tokens=1, view_us=1) is None
        reservations.give_back("a", "x")
        await reservations.close()
    bus.speak_again()

    assert (reservations.failures, reservations.given_back) == (2, 0)


async def test_a_bus_that_answers_no_reservation_costs_a_choice_now_and_then_its_time_and_says_so_once(bus, caplog):
    """After some failures it is asked again after pauses; its first answer ends that."""
    now_s = [0.0]
    store = Store(bus.client)
    reservations = Reservations(bus.connect(timeout_s=0.02), POOL, clock=lambda: now_s[0])

    async def choose() -> Reserved | None:
        return await reservations.choose(AB, reservation=new_reservation_id(), tokens=1, view_us=1)

    bus.fall_silent()
    with caplog.at_level(logging.WARNING, "forebay.bus"):
        for _ in range(100):
            assert await choose() is None
            now_s[0] += 0.05
    bus.speak_again()
    assert reservations.failures + reservations.not_asked == 100
    assert 5 <= reservations.failures <= 12
    assert len(caplog.records) == 1
    now_s[0] += LONGEST_PAUSE_S
    for _ in range(2):
        assert await reservations.choose(AB, reservation="x", tokens=1, view_us=await store.young_us()) is not None
    assert len(caplog.records) == 2


async def test_one_silence_that_many_met_at_once_is_one_failure(bus):
    """A hiccup of the bus is no reason to choose alone for longer."""
    reservations = Reservations(bus.connect(timeout_s=0.02), POOL, clock=lambda: 0.0)
    bus.fall_silent()
    asked = [reservations.choose(AB, reservation=new_reservation_id(), tokens=1, view_us=1) for _ in range(20)]
    assert await asyncio.gather(*asked) == [None] * 20
    bus.speak_again()
    assert reservations.failures == 20
    await reservations.choose(AB, reservation="x", tokens=1, view_us=1)
    assert reservations.not_asked == 0


async def test_a_request_without_tokens_is_reserved_as_one(reservations, store):
    """An empty prompt is a request all the same."""
    await reservations.choose(AB, reservation="x", tokens=0, view_us=await store.young_us())

    assert await store.sums() == InTransit(1, 1)


async def test_a_score_that_is_no_number_leaves_the_choice_to_the_replica(reservations, store):
    """The script refuses it whole."""
    offers = [AB[0], Offer("b", math.nan, 0.0, 0.0, 0, 0)]

    assert await reservations.choose(offers, reservation="x", tokens=1, view_us=await store.young_us()) is None
    assert reservations.failures == 1
    assert await store.sums() == InTransit()


def test_no_two_ids_are_the_same():
    """Nor does an id break the header in which it travels."""
    ids = {new_reservation_id() for _ in range(1000)}

    assert len(ids) == 1000
    assert not any(set(each) & set('; =,"\r\n') for each in ids)
