import asyncio
import math

from bus.in_transit import InTransit, Offer
from bus.reservations import Reservations, new_reservation_id
from tests.bus.store import AB
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
