"""The gate: bounded, first come first served, and a cancelled waiter neither takes a place away nor keeps one."""

import asyncio
import random

import pytest

from bus.hop.headers import PRIORITIES, Priority
from workers.gate import Gate


class Visitor:
    """A task that enters the gate, says so, and stays until it is told to leave."""

    def __init__(self, gate: Gate, name: int, log: list[int], places: int = 1) -> None:
        self.name = name
        self.places = places
        self.may_leave = asyncio.Event()
        self.is_inside = False
        self._log = log
        self.task = asyncio.create_task(self._visit(gate))

    async def _visit(self, gate: Gate) -> None:
        await gate.enter(places=self.places)
        self.is_inside = True
        self._log.append(self.name)
        try:
            await self.may_leave.wait()
        finally:
            self.is_inside = False
            gate.leave(self.places)


async def turns(count: int = 3) -> None:
    """Let every task that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_at_most_so_many_are_inside_and_they_enter_in_order():
    """Two places, five visitors: the third enters when one leaves, then the fourth."""
    gate, log = Gate(2), []
    visitors = [Visitor(gate, name, log) for name in range(5)]
    await turns()
    assert log == [0, 1]
    for leaving in visitors:
        leaving.may_leave.set()
        await leaving.task
        await turns()
        assert gate.held <= 2
    assert log == [0, 1, 2, 3, 4]
    assert repr(gate) == "<Gate 0/2 held, 0 waiting>"


async def test_nobody_overtakes_in_the_turn_in_which_a_place_is_given():
    """A place that is handed to a waiter is not free for one who comes before the waiter runs."""
    gate, log = Gate(1), []
    inside, waiting = Visitor(gate, 0, log), Visitor(gate, 1, log)
    await turns()
    inside.may_leave.set()
    await inside.task  # the place is given in this turn
    late = Visitor(gate, 2, log)
    await turns()
    assert log == [0, 1]
    waiting.may_leave.set()
    late.may_leave.set()
    await asyncio.gather(waiting.task, late.task)
    assert log == [0, 1, 2]
    assert gate.held == 0


async def test_cancel_while_waiting_leaves_the_line():
    """The one behind a cancelled waiter enters when the place becomes free."""
    gate, log = Gate(1), []
    inside, gives_up, behind = (Visitor(gate, name, log) for name in range(3))
    await turns()
    gives_up.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up.task
    assert repr(gate) == "<Gate 1/1 held, 1 waiting>"
    inside.may_leave.set()
    behind.may_leave.set()
    await asyncio.gather(inside.task, behind.task)
    assert (log, gate.held) == ([0, 2], 0)


async def test_cancel_after_grant_hands_the_place_on():
    """A waiter cancelled in the very turn in which the place was given to it passes it on."""
    gate, log = Gate(1), []
    await gate.__aenter__()
    granted, behind = Visitor(gate, 0, log), Visitor(gate, 1, log)
    await turns()
    await gate.__aexit__(None, None, None)  # given to the first, which has not run yet
    granted.task.cancel()
    await turns()
    assert granted.task.cancelled()
    assert (log, behind.is_inside, gate.held) == ([1], True, 1)
    behind.may_leave.set()
    await behind.task
    assert gate.held == 0


async def test_grant_after_cancel_skips_the_cancelled():
    """A place that becomes free after a waiter was cancelled, before it could leave the line, goes to the next."""
    gate, log = Gate(1), []
    await gate.__aenter__()
    cancelled, behind = Visitor(gate, 0, log), Visitor(gate, 1, log)
    await turns()
    cancelled.task.cancel()
    await gate.__aexit__(None, None, None)
    await turns()
    assert cancelled.task.cancelled()
    assert (log, gate.held) == ([1], 1)
    behind.may_leave.set()
    await behind.task
    assert gate.held == 0


async def test_who_wants_several_places_waits_for_as_many_and_nobody_overtakes():
    """Of three places two are taken; who wants two enters when one is given back, and only then who wants one."""
    gate, log = Gate(3), []
    inside = [Visitor(gate, name, log) for name in range(2)]
    await turns()
    several, single = Visitor(gate, 2, log, places=2), Visitor(gate, 3, log)
    await turns()
    assert repr(gate) == "<Gate 2/3 held, 2 waiting>"
    inside[0].may_leave.set()
    await turns()
    assert (log, gate.held) == ([0, 1, 2], 3)
    several.may_leave.set()
    await turns()
    assert (log, gate.held) == ([0, 1, 2, 3], 2)
    for visitor in (inside[1], single):
        visitor.may_leave.set()
    await asyncio.gather(inside[1].task, single.task)
    assert gate.held == 0


async def test_places_given_back_at_once_let_in_all_who_fit():
    """One of three leaves; three who want one come in."""
    gate, log = Gate(3), []
    whole = Visitor(gate, 0, log, places=3)
    await turns()
    singles = [Visitor(gate, name, log) for name in range(1, 5)]
    await turns()
    whole.may_leave.set()
    await turns()
    assert log == [0, 1, 2, 3]
    for visitor in singles:
        visitor.may_leave.set()
    await asyncio.gather(*(visitor.task for visitor in singles))


@pytest.mark.parametrize("is_given", [False, True], ids=["while it waits", "after they were given"])
async def test_when_one_who_wants_several_is_cancelled_those_behind_come_in(is_given):
    """At once: there was room for them all along."""
    gate, log = Gate(2), []
    await gate.enter()
    several, single = Visitor(gate, 0, log, places=2), Visitor(gate, 1, log)
    await turns()
    if is_given:
        gate.leave()  # given to the first, which has not run yet
        assert gate.held == 2
    several.task.cancel()
    await turns()
    assert (log, single.is_inside, gate.held) == ([1], True, 1 if is_given else 2)
    if not is_given:
        gate.leave()
    single.may_leave.set()
    await single.task
    assert gate.held == 0


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
async def test_who_wants_all_places_is_not_kept_waiting_by_those_who_want_one(priority):
    """However many of every class come meanwhile, it has its turn, at the latest after a few rounds of the shares."""
    gate, log = Gate(2), []

    async def single(name: int, of: Priority) -> None:
        await gate.enter(of)
        log.append(name)
        for _ in range(5):
            await asyncio.sleep(0)
        gate.leave()

    async def whole() -> int:
        await gate.enter(priority, 2)
        try:
            assert gate.held == 2
            return len(log)
        finally:
            gate.leave(2)

    tasks = [asyncio.create_task(single(-1, of)) for of in PRIORITIES for _ in range(4)]
    await turns()
    waiting = asyncio.create_task(whole())
    for name in range(400):
        tasks.append(asyncio.create_task(single(name, PRIORITIES[name % 3])))
        await turns(1)
    assert await waiting < 120
    await asyncio.gather(*tasks)
    assert repr(gate) == "<Gate 0/2 held, 0 waiting>"


async def test_a_place_that_is_free_goes_to_another_class_whose_turn_comes_first():
    """The first of `low` waits for two; one of `high` that comes then takes the one that is free."""
    gate = Gate(2)
    await gate.enter()
    low = asyncio.create_task(gate.enter("low", 2))
    await turns()
    async with asyncio.timeout(1.0):
        await gate.enter("high")
    gate.leave()
    assert not low.done()
    gate.leave()
    await asyncio.wait_for(low, 1.0)
    assert gate.held == 2


async def test_a_failure_inside_gives_the_place_back():
    """Whatever way a visitor leaves."""
    gate = Gate(1)
    with pytest.raises(ZeroDivisionError):
        async with gate:
            raise ZeroDivisionError
    assert gate.held == 0


@pytest.mark.parametrize("is_settled", [True, False], ids=["one after the other", "at once"])
@pytest.mark.parametrize("seed", range(40))
async def test_no_schedule_leaks_a_place_or_lets_too_many_in(seed, is_settled):
    """Visitors come, leave and are cancelled at random; at the end the gate is empty and everybody had their turn."""
    rng = random.Random(seed)
    gate, log = Gate(rng.randint(1, 4)), []
    visitors: list[Visitor] = []
    for name in range(60):
        visitors.append(Visitor(gate, name, log, rng.randint(1, gate.places)))
        for _ in range(rng.randint(0, 3)):
            one = rng.choice(visitors)
            if rng.random() < 0.5:
                one.may_leave.set()
            else:
                one.task.cancel()
            if is_settled:
                await turns()
            elif rng.random() < 0.5:
                await turns(rng.randint(1, 2))
        assert sum(visitor.places for visitor in visitors if visitor.is_inside) <= gate.places
        assert gate.held <= gate.places
    for visitor in visitors:
        visitor.may_leave.set()
    ends = await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
    assert (
        log == sorted(log) or not is_settled
    )  # a place that is free is taken in a turn, one that is given in the next
    assert repr(gate) == f"<Gate 0/{gate.places} held, 0 waiting>"
