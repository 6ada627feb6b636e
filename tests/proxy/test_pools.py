"""Several pools: what one cannot take another may, and what was sent into one says nothing of another."""

import pytest

from bus.reader import SAMPLE, Reader
from bus.reservations import Reservations
from proxy.admission import FleetFull
from proxy.config import ProxyConfig
from proxy.facts import read_facts
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from tests.bus.worker import Worker, registration
from tests.proxy.candidates import IDLE

FACTS = read_facts("/v1/completions", b'{"model":"m","prompt":"' + b"word " * 400 + b'"}')


@pytest.fixture
async def worker(bus):
    """Announce an instance in a pool; where it is full a slot comes free in `ready_ms`."""

    async def make(pool: str, instance: str, *, ready_ms: float | None = None) -> Worker:
        one = Worker(bus.connect(), instance, pool=pool, ttl_ms=60_000)
        one.registration = registration(instance, models=("m",), ttl_ms=60_000, slots=1, queue_limit=0)
        one.signals = {**IDLE}
        if ready_ms is not None:
            one.signals |= {"inflight": 1, "active_decode_count": 1, "next_slot_ready_in_ms": ready_ms}
        await one.publish()
        return one

    return make


@pytest.fixture
async def selection(bus):
    """Give a replica of two pools, the first preferred."""
    readers = [Reader(bus.connect(0.5), pool, budget_s=0.5) for pool in ("first", "second")]
    yield Selection(
        readers,
        [Reservations(bus.connect(0.5), pool) for pool in ("first", "second")],
        STRATEGIES["predicted_ttft"](ProxyConfig()),
        rotation=Rotation.of_replica("r"),
    )
    for reader in readers:
        await reader.close()


async def test_a_full_pool_is_passed_over(selection, worker):
    """Nobody is refused while another pool has room."""
    await worker("first", "a", ready_ms=5000)
    await worker("second", "b")
    chosen = await selection.choose("r1", FACTS)
    assert (chosen.pool, chosen.instance) == ("second", "b")


async def test_all_pools_full_is_refused_with_the_soonest_time_of_any(selection, worker):
    """However they are ordered."""
    await worker("first", "a", ready_ms=9000)
    await worker("second", "b", ready_ms=3000)
    with pytest.raises(FleetFull) as refused:
        await selection.choose("r1", FACTS)
    assert refused.value.retry_after_s == pytest.approx(3.0, abs=2.0)


async def test_what_was_sent_into_one_pool_is_not_counted_in_another(selection, worker, bus):
    """Instances of two pools may have one name."""
    for pool in ("first", "second"):
        for name in "ab":
            one = await worker(pool, name)
            one.registration = registration(name, models=("m",), ttl_ms=60_000, slots=8, queue_limit=64)
            one.publisher.announce()
            await one.publish()
    for reader in selection.readers.values():
        await reader.view()
    bus.fall_silent()
    chosen = [await selection.choose(f"r{number}", FACTS) for number in range(4)]
    assert {each.pool for each in chosen} == {"first"}
    assert sorted(each.instance for each in chosen) == ["a", "a", "b", "b"]
    assert selection._unshown["second"].in_transit(read_at_s=0.0) == {}


async def test_where_a_sample_is_full_one_that_was_not_read_is_asked_and_no_more(selection, worker):
    """A fleet at its limit is not walked through by each request; who was not seen may have room all the same."""
    for number in range(SAMPLE + 8):
        await worker("first", f"i{number}", ready_ms=5000)
    await selection.readers["first"].view()
    view = selection.readers["first"].last_view
    asked = await selection.choose("r1", FACTS)
    assert asked.decision.choice.evaluation.tier != "measured"
    with pytest.raises(FleetFull):
        await selection.choose("r1", FACTS, tried={asked.instance})
    assert len(view.registered()) == SAMPLE + 8
