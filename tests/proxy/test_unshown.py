import asyncio
from collections import Counter

import pytest

from bus.reader import Reader
from bus.reservations import Reservations
from proxy.config import ProxyConfig
from proxy.facts import read_facts
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from proxy.unshown import SHOWN_AFTER_S, Unshown
from tests.bus.worker import POOL, Worker, registration
from tests.proxy.candidates import IDLE, full

BODY = b'{"model":"m","prompt":"' + b"word " * 400 + b'"}'


def test_what_was_sent_counts_until_a_view_can_show_it():
    """Sums by instance, older ones forgotten."""
    unshown = Unshown()
    unshown.note("r1", "a", 500, now_s=10.0)
    unshown.note("r2", "a", 300, now_s=10.5)
    unshown.note("r3", "b", 200, now_s=10.5)

    assert unshown.in_transit(read_at_s=10.0) == {"a": (800, 2), "b": (200, 1)}
    assert unshown.in_transit(read_at_s=10.25 + SHOWN_AFTER_S) == {"a": (300, 1), "b": (200, 1)}
    assert unshown.in_transit(read_at_s=11.0) == {}


def test_what_has_ended_counts_no_longer():
    """A request that is answered, and one that was never noted."""
    unshown = Unshown()
    unshown.note("r1", "a", 500, now_s=10.0)
    unshown.ended("r1")
    unshown.ended("r9")
    assert unshown.in_transit(read_at_s=10.0) == {}


def test_it_adds_to_what_all_replicas_have_reserved():
    """The others' reservations stay; instances without are the very same."""
    unshown = Unshown()
    unshown.note("r1", "a", 500, now_s=10.0)
    found = [full("a", transit=(100, 1)).pressure, full("b").pressure]
    a, b = unshown.added_to(found, read_at_s=10.0)
    assert (a.in_transit_tokens, a.in_transit_requests) == (600, 2)
    assert b is found[1]


@pytest.fixture
async def selection(bus):
    """Give a replica's selection on four instances that differ by parts of a thousand, whose bus has fallen silent."""
    for number in range(4):
        worker = Worker(bus.connect(), f"i{number}", ttl_ms=60_000)
        worker.registration = registration(f"i{number}", models=("m",), ttl_ms=60_000)
        worker.signals = {**IDLE, "prefill_tokens_per_s": 4000.0 - number}
        await worker.publish()
    reader = Reader(bus.connect(0.1), POOL, budget_s=0.1)
    await reader.view()
    bus.fall_silent()
    yield Selection(
        [reader],
        [Reservations(bus.connect(0.1), POOL)],
        STRATEGIES["predicted_ttft"](ProxyConfig()),
        rotation=Rotation.of_replica("r"),
    )
    await reader.close()


async def test_a_replica_that_sees_nothing_new_does_not_herd(selection):
    """Sixteen choices at once and eight more by one old view: every instance gets its share of each."""
    facts = read_facts("/v1/completions", BODY)
    chosen = await asyncio.gather(*(selection.choose(f"r{number}", facts) for number in range(16)))
    assert not any(each.decision.choice.reserved for each in chosen)
    assert set(Counter(each.instance for each in chosen).values()) == {4}

    more = [await selection.choose(f"s{number}", facts) for number in range(8)]
    assert set(Counter(each.instance for each in more).values()) == {2}


async def test_what_has_been_answered_pushes_nobody_away(selection):
    """A choice that has ended leaves the best instance the best."""
    facts = read_facts("/v1/completions", BODY)
    for number in range(5):
        chosen = await selection.choose(f"r{number}", facts)
        assert chosen.instance == "i0"
        selection.release(chosen)
