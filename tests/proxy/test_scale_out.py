"""Who is new, and who comes back, among many requests at once: neither left idle beside a queue nor flooded."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest

from bus.in_transit import InTransit, Offer, Reserved
from bus.in_transit import choose as choose_offer
from bus.record import PressureRecord
from bus.registration import Registration, RegistrationEntry
from bus.view import PoolView, Reading
from proxy.config import ProxyConfig
from proxy.ejection import FIRST_PAUSE_S, NEW_HERE_S
from proxy.facts import Facts
from proxy.rotation import Rotation
from proxy.selection import Selected, Selection
from proxy.strategies.predicted_ttft import PredictedTTFT
from tests.proxy.candidates import IDLE

SLOTS = 16
FACTS = Facts(model="m", exact_tokens=1000)
SERVER_US = 1_000_000

#: All slots taken and as many requests waiting; and nearly idle.
SATURATED = {**IDLE, "inflight": 2 * SLOTS, "ready_queue_depth": SLOTS, "predicted_wait_ms": 30_000}
BUSY = {**IDLE, "inflight": 2, "active_decode_count": 2}
NEW = [f"new{number}" for number in range(9)]


class Pool:
    """Records of a pool as a reader shows them, and its reservations; the bus takes a moment to choose."""

    pool = "default"
    reads = 1

    def __init__(self) -> None:
        self.now_s = 0.0
        self.records: dict[str, dict[str, float]] = {}
        self.sums: Counter[str] = Counter()
        self.may_choose = asyncio.Event()
        self.may_choose.set()
        self.is_reachable = True

    @property
    def last_view(self) -> PoolView:
        """The pool as it is now."""
        place = Registration(worker_url="http://w", engine_url="http://e", models=("m",), slots=SLOTS, queue_limit=256)
        entry = RegistrationEntry(1, 10**15, place)
        readings = {
            name: Reading(name, entry, PressureRecord(epoch=1, sequence=1, **signals), SERVER_US)
            for name, signals in self.records.items()
        }
        return PoolView(self.pool, SERVER_US, self.now_s, readings, SERVER_US)

    async def view(self, _: str | None) -> PoolView:
        """Read it."""
        return self.last_view

    async def choose(self, offers: Sequence[Offer], **_: object) -> Reserved | None:
        """Choose with what all have reserved by now."""
        await self.may_choose.wait()
        await asyncio.sleep(0)
        if not self.is_reachable:
            return None
        reserved = choose_offer(offers, [InTransit(0, self.sums[offer.instance]) for offer in offers])
        self.sums[offers[reserved.index].instance] += 1
        return reserved


@pytest.fixture
def pool() -> Pool:
    """Give a pool of one instance that a replica has known for long."""
    return Pool()


async def of_long(pool: Pool, *names: str) -> Selection:
    """Give a replica that has known these for long."""
    pool.records = dict.fromkeys(names, BUSY)
    selection = Selection([pool], [pool], PredictedTTFT(ProxyConfig()), rotation=Rotation(0), clock=lambda: pool.now_s)
    selection.release(await selection.choose("first", FACTS))
    pool.now_s = NEW_HERE_S
    pool.sums.clear()
    return selection


async def burst(selection: Selection, requests: int) -> list[Selected]:
    """So many at once."""
    return list(await asyncio.gather(*(selection.choose(str(number), FACTS) for number in range(requests))))


def places(chosen: list[Selected]) -> Counter[str]:
    """Where they went."""
    return Counter(each.instance for each in chosen)


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_a_burst_beside_a_saturated_instance_goes_to_those_that_are_new(pool, is_reachable):
    """Nine idle ones with 16 slots each: not one of 40 waits half a minute behind a queue, and none gets them all."""
    selection = await of_long(pool, "old")
    pool.records = {"old": SATURATED, **dict.fromkeys(NEW, IDLE)}
    pool.is_reachable = is_reachable
    went = places(await burst(selection, 40))
    assert went["old"] == 0
    assert max(went.values()) <= SLOTS


async def test_one_after_the_other_they_go_there_too(pool):
    """Answers take longer than the next requests to come."""
    selection = await of_long(pool, "old")
    pool.records = {"old": SATURATED, **dict.fromkeys(NEW, IDLE)}
    assert places([await selection.choose(str(number), FACTS) for number in range(40)])["old"] == 0


async def test_while_others_have_free_slots_who_is_new_gets_one(pool):
    """However much better it looks, and however many choose at once."""
    selection = await of_long(pool, "old", "older")
    pool.records = {"old": BUSY, "older": BUSY, "new": IDLE}
    assert places(await burst(selection, 12))["new"] == 1


@pytest.mark.parametrize(("others", "most"), [(BUSY, 1), (SATURATED, 2)])
async def test_who_comes_back_from_a_failure_gets_one_and_where_all_others_are_saturated_two(pool, others, most):
    """An engine that fails fast looks best of all: the bus may not send there what nobody has taken a place for."""
    selection = await of_long(pool, "a", "b", "back")
    selection.ejections.failed("back", pool.now_s)
    pool.now_s += FIRST_PAUSE_S
    pool.records = {"a": others, "b": others, "back": IDLE}
    chosen = await burst(selection, 12)
    assert places(chosen)["back"] == most
    for each in chosen:
        if each.instance == "back":
            selection.ejections.failed("back", pool.now_s)
    pool.now_s += 2 * FIRST_PAUSE_S
    assert places(await burst(selection, 12))["back"] == most


async def test_a_place_is_taken_where_the_bus_chose_and_given_back_where_it_did_not(pool):
    """Others have filled the first choice since it was made."""
    selection = await of_long(pool, "old")
    pool.records = {"old": SATURATED, "new0": IDLE, "new1": {**IDLE, "predicted_wait_ms": 1}}
    standings = selection.ejections._standings
    for each in await burst(selection, 2):  # a place at each is taken: from here on only pressure lets more in
        assert each.standing is standings[each.instance]
    pool.may_choose.clear()
    choosing = asyncio.ensure_future(selection.choose("a", FACTS))
    await asyncio.sleep(0)
    first = next(name for name in ("new0", "new1") if standings[name].under_way == 2)
    pool.sums[first] += 50
    pool.may_choose.set()
    chosen = await choosing
    assert chosen.instance not in {first, "old"}
    assert (standings[first].under_way, standings[chosen.instance].under_way) == (1, 2)
    selection.release(chosen)
    assert standings[chosen.instance].under_way == 1


async def test_a_client_that_leaves_during_the_choice_leaves_no_place_taken(pool):
    """The bus had not answered."""
    selection = await of_long(pool, "old")
    pool.records = {"old": BUSY, "new": IDLE}
    pool.may_choose.clear()
    choosing = asyncio.ensure_future(selection.choose("a", FACTS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    standing = selection.ejections._standings["new"]
    assert standing.under_way == 1
    choosing.cancel()
    with suppress(asyncio.CancelledError):
        await choosing
    assert standing.under_way == 0
