"""Choose and reserve, give back, settle: the scripts on every server, their pure counterpart, and every known race."""

import asyncio
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bus.errors import BusUnavailable
from bus.in_transit import GRACE_MS, MOST_OFFERS, OLDEST_VIEW_US, InTransit, Offer, choose
from bus.keys import instances_key, pressure_key, reserved_key
from bus.record import LARGEST, MAX_RECORD_BYTES
from bus.registration import MAX_ENTRY_BYTES
from bus.reservations import Reservations, new_reservation_id
from bus.scripts import Script
from tests.bus.reserving import Wire
from tests.bus.worker import POOL, Worker, until

#: What Lua takes for a number, or would, and no count is.
NO_INTEGER = ("", "abc", "nan", "inf", "-inf", "1.5", "-1", "1e300", "9007199254740992", "1 2")
NO_NUMBER = ("", "abc", "nan", "-nan", "inf", "-inf", "1e301", "1 2")
LONGEST_GRACE_MS = 60_000

#: What somebody may have put in place of a sum; None: nothing.
RUBBISH = (None, "", "rubbish", "-5", "1.5", "nan", "inf", "9" * 30)

FREE = ("0", "0", "0", "0", "0")
"""An offer of an idle instance to which nothing makes a difference."""


class Store:
    """The scripts on one server, and what their keys then hold."""

    def __init__(self, client) -> None:
        self.client = client
        self._scripts = {name: Script(client, name) for name in ("reserve", "give_back", "publish", "read_pool")}
        self._sequence = 0

    async def now_us(self) -> int:
        """Server time."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    async def young_us(self) -> int:
        """Server time of a view that is young enough for as long as any test takes, however slow the machine."""
        return await self.now_us() + 60_000_000

    async def reserve(
        self,
        *instances: str,
        reservation: str = "x",
        amount: object = 100,
        grace_ms: object = GRACE_MS,
        view_us: object = None,
        oldest_us: object = OLDEST_VIEW_US,
        offers=None,
    ):
        """Call the script; by default with equal offers."""
        view_us = await self.young_us() if view_us is None else view_us
        offers = offers if offers is not None else [FREE] * len(instances)
        args = [reservation, amount, grace_ms, view_us, oldest_us, *(number for offer in offers for number in offer)]
        return await self._scripts["reserve"]([reserved_key(POOL, name) for name in instances], args)

    async def give_back(self, instance: str, reservation: str = "x") -> int:
        """End one reservation."""
        return await self._scripts["give_back"]([reserved_key(POOL, instance)], [reservation])

    async def publish(self, instance: str, *settled: str):
        """Publish some record that counts these."""
        self._sequence += 1
        keys = (pressure_key(POOL, instance), instances_key(POOL), reserved_key(POOL, instance))
        return await self._scripts["publish"](keys, ("record", 1, self._sequence, 1500, instance, *settled))

    async def sums(self, instance: str = "a") -> InTransit:
        """What a reader is told."""
        keys = (instances_key(POOL), pressure_key(POOL, instance), reserved_key(POOL, instance))
        *_, row = await self._scripts["read_pool"](keys, (0, MAX_RECORD_BYTES, MAX_ENTRY_BYTES))
        return InTransit(*row[3:])

    async def fields(self, instance: str = "a") -> dict[str, str]:
        """The hash as it is."""
        stored = await self.client.hgetall(reserved_key(POOL, instance))
        return {name.decode(): value.decode() for name, value in stored.items()}

    async def life_ms(self, instance: str = "a") -> int:
        """PTTL of the hash."""
        return await self.client.pttl(reserved_key(POOL, instance))

    async def put(self, instance: str = "a", *, life_ms: int = 2000, **leases: tuple[int, int]) -> None:
        """Store reservations (amount, expiry in ms from now) as the script would have."""
        now_us = await self.now_us()
        ends = {name: now_us + in_ms * 1000 for name, (_, in_ms) in leases.items()}
        fields = {f"r:{name}": f"{amount};{ends[name]}" for name, (amount, _) in leases.items()}
        sums = {"tokens": sum(amount for amount, _ in leases.values()), "requests": len(leases)}
        await self.client.hset(reserved_key(POOL, instance), mapping=fields | sums | {"oldest": min(ends.values())})
        await self.client.pexpire(reserved_key(POOL, instance), life_ms)


@pytest.fixture
def store(bus) -> Store:
    """Give the scripts on each server."""
    return Store(bus.client)


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


# --- the replica's side


@pytest.fixture
def reservations(bus) -> Reservations:
    """Give a replica's reservations."""
    return Reservations(bus.connect(), POOL)


AB = [Offer("a", 0.0, 0.001, 0.0, 0, 0), Offer("b", 1.0, 0.001, 0.0, 0, 0)]


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


# --- races, by name


class Race:
    """One worker, and a replica that has reserved 100 tokens for request x and 20 for y, which is still on its way."""

    def __init__(self, bus) -> None:
        self.store = Store(bus.client)
        self.wire = Wire(bus.connect())
        self.worker = Worker(self.wire.client)
        self.replicas = [Reservations(bus.connect(), POOL) for _ in range(2)]

    async def begin(self) -> "Race":
        """Reserve both."""
        await self.worker.publish()
        await self.reserve("x", 100)
        await self.reserve("y", 20)
        assert await self.store.sums() == InTransit(120, 2)
        return self

    async def reserve(self, reservation: str, tokens: int) -> None:
        """Reserve at the worker's instance."""
        offers, view_us = [Offer("a", 0.0, 0.0, 0.0, 0, 0)], await self.store.young_us()
        assert await self.replicas[0].choose(offers, reservation=reservation, tokens=tokens, view_us=view_us)

    async def give_back(self, replica: int = 0, reservation: str = "x") -> None:
        """A replica gives back."""
        self.replicas[replica].give_back("a", reservation)
        await self.replicas[replica].close()

    async def only_y_is_left(self) -> bool:
        """Whether nothing but y is in transit."""
        return await self.store.sums() == InTransit(20, 1)


@pytest.fixture
async def race(bus) -> Race:
    """Give the two requests in transit."""
    return await Race(bus).begin()


@pytest.mark.parametrize("order", ["give back first", "settle first", "at once"])
async def test_give_back_crossing_the_settlement(race, order):
    """The worker had accepted what the proxy took for undelivered: whoever comes second changes nothing."""
    race.worker.publisher.arrived("x")

    if order == "give back first":
        await race.give_back()
        await race.worker.publish()
    elif order == "settle first":
        await race.worker.publish()
        await race.give_back()
    else:
        await asyncio.gather(race.give_back(), race.worker.publish())

    assert await race.only_y_is_left()


async def test_arrival_after_expiry(race):
    """A request that took longer than the grace period is settled to no effect on those that stand."""
    key = reserved_key(POOL, "a")
    now_us = await race.store.now_us()
    await race.store.client.hset(key, mapping={"r:x": f"100;{now_us - 1}", "oldest": now_us - 1})
    assert await race.only_y_is_left()

    race.worker.publisher.arrived("x")
    await race.worker.publish()

    assert await race.only_y_is_left()
    await race.give_back()
    assert await race.only_y_is_left()


async def test_a_reserve_that_ran_late(real_bus):
    """The replica gave up; the server, stopped for longer than 250 ms, runs the script and reserves nothing."""
    store, reservations = Store(real_bus.client), Reservations(real_bus.connect(timeout_s=0.05), POOL)
    await reservations.choose(AB, reservation="first", tokens=1, view_us=await store.young_us())  # it knows the script
    calls = (await real_bus.calls())["evalsha"]
    view_us = await store.now_us()

    real_bus.fall_silent()
    assert await reservations.choose(AB, reservation="late", tokens=1, view_us=view_us) is None
    loop = asyncio.get_running_loop()
    over_s = loop.time() + 1.2 * OLDEST_VIEW_US / 1e6
    await until(lambda: loop.time() > over_s)
    real_bus.speak_again()

    async def has_run() -> bool:
        return (await real_bus.calls())["evalsha"] > calls

    await until(has_run)
    assert {"r:late"}.isdisjoint(await store.fields("a") | await store.fields("b"))
    assert (reservations.failures, reservations.too_late) == (1, 0)


async def test_a_reserve_whose_reply_is_lost_stands_until_it_expires(bus):
    """The replica delivers to its own best; what was reserved elsewhere under the same id is over with its grace."""
    store, wire = Store(bus.client), Wire(bus.connect())
    reservations = Reservations(wire.client, POOL, grace_ms=50)
    await store.reserve("a", reservation="others", amount=5000, grace_ms=LONGEST_GRACE_MS)  # and renews no expiry of x
    wire.loses_answer = True

    assert await reservations.choose(AB, reservation="x", tokens=10, view_us=await store.young_us()) is None
    worker = Worker(bus.connect(), "a")
    worker.publisher.arrived("x")
    await worker.publish()

    async def is_over() -> bool:
        return await store.sums("b") == InTransit()

    await until(is_over)
    assert await store.sums("a") == InTransit(5000, 1)


async def test_resend_on_a_fresh_connection(race):
    """The worker gets the same request twice, once before and once after the record that counts it."""
    race.worker.publisher.arrived("x")
    race.worker.publisher.arrived("x")
    await race.worker.publish()
    race.worker.publisher.arrived("x")
    await race.worker.publish()

    assert await race.only_y_is_left()


async def test_a_worker_restarted_while_requests_are_in_transit(race, bus):
    """What the old worker had accepted and not published is the replica's to give back; the old one settles no more."""
    race.worker.publisher.arrived("x")
    newer = Worker(bus.connect())
    await newer.publish()
    race.worker.publisher.arrived("y")

    await race.worker.publish()  # refused
    assert race.worker.gave_way == 1
    assert await race.store.sums() == InTransit(120, 2)
    await race.give_back()
    assert await race.only_y_is_left()
    newer.publisher.arrived("y")
    await newer.publish()
    assert await race.store.sums() == InTransit()


@pytest.mark.parametrize("is_executed", [True, False])
async def test_publish_whose_reply_is_lost(race, is_executed):
    """The ids are sent again with the next record, whether or not the first one came through."""
    race.wire.loses_answer, race.wire.loses_command = is_executed, not is_executed
    race.worker.publisher.arrived("x")
    await race.worker.publish()
    assert race.worker.publisher.failures == 1
    assert await race.only_y_is_left() == is_executed

    await race.worker.publish()

    assert await race.only_y_is_left()


async def test_two_proxies_give_back_the_same_id(race):
    """One of them ends it."""
    await asyncio.gather(race.give_back(0), race.give_back(1))

    assert await race.only_y_is_left()
    assert sorted(each.given_back for each in race.replicas) == [0, 1]


async def test_a_reservation_id_used_again(race):
    """While it stands it counts once, with its first amount; after its end it is a new one."""
    await race.reserve("x", 7)
    assert await race.store.sums() == InTransit(120, 2)

    await race.give_back()
    await race.reserve("x", 7)

    assert await race.store.sums() == InTransit(27, 2)
