"""Weighted shares: who waits is served by weight, and nobody starves."""

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hop.headers import PRIORITIES, Priority
from tests.workers.test_gate import turns
from workers.gate import Gate
from workers.shares import WEIGHTS, Shares

ROUND = sum(WEIGHTS.values())


def served_by(shares: Shares, waiting: Iterable[Priority]) -> Priority:
    """Whose turn it is, and has been then."""
    chosen = shares.turn(waiting)
    shares.took(chosen)
    return chosen


WAITING = st.lists(st.sets(st.sampled_from(PRIORITIES), min_size=1), max_size=200)


@pytest.mark.parametrize("rounds", [1, 10])
def test_while_all_wait_the_turns_are_as_the_weights(rounds):
    """Of thirteen eight, four and one."""
    shares = Shares()
    served = Counter(served_by(shares, PRIORITIES) for _ in range(rounds * ROUND))
    assert served == {priority: rounds * weight for priority, weight in WEIGHTS.items()}


@given(WAITING)
def test_nobody_who_waits_is_passed_over_for_more_than_a_round(history):
    """Whoever else comes and goes: after at most as many turns as the others have weight it is theirs."""
    shares, was, passed_over = Shares(), frozenset(), Counter()
    for waiting in history:
        for priority in waiting - was:
            shares.returned(priority)
            passed_over[priority] = 0
        chosen = served_by(shares, waiting)
        assert chosen in waiting
        passed_over[chosen] = 0
        for priority in waiting - {chosen}:
            passed_over[priority] += 1
            assert passed_over[priority] <= 2 * (ROUND // WEIGHTS[priority])
        was = frozenset(waiting)


@given(st.integers(0, 500))
def test_what_a_class_did_not_use_is_gone(turns_before):
    """A class that was away comes back without a claim, and finds none against it."""
    shares = Shares()
    shares.returned("low")
    for _ in range(turns_before):
        served_by(shares, ["low"])
    shares.returned("high")
    served = Counter(served_by(shares, ["high", "low"]) for _ in range(9))
    assert served["low"] <= 2
    for _ in range(turns_before):
        served_by(shares, ["high"])
    shares.returned("low")
    assert Counter(served_by(shares, ["high", "low"]) for _ in range(18))["low"] in {1, 2, 3}


@given(st.lists(st.sampled_from(PRIORITIES), max_size=40))
async def test_a_gate_serves_all_who_wait_in_their_class_in_order(priorities):
    """Whatever the mix: everybody enters, nobody overtakes within a class, no place is lost."""
    gate, log = Gate(1), []
    await gate.enter()

    async def visit(name: int, priority) -> None:
        await gate.enter(priority)
        log.append(name)
        gate.leave()

    tasks = [asyncio.create_task(visit(name, priority)) for name, priority in enumerate(priorities)]
    await turns()
    assert gate.waiting == len(priorities)
    gate.leave()
    await asyncio.gather(*tasks)
    for each in PRIORITIES:
        own = [name for name in log if priorities[name] == each]
        assert own == sorted(own)
    assert len(log) == len(priorities)
    assert (gate.held, gate.waiting) == (0, 0)
