"""The gate: bounded, first come first served, and a cancelled waiter neither takes a place away nor keeps one."""

import asyncio
import random

import pytest

from workers.gate import Gate


class Visitor:
    """A task that enters the gate, says so, and stays until it is told to leave."""

    def __init__(self, gate: Gate, name: int, log: list[int]) -> None:
        self.name = name
        self.may_leave = asyncio.Event()
        self.is_inside = False
        self._log = log
        self.task = asyncio.create_task(self._visit(gate))

    async def _visit(self, gate: Gate) -> None:
        async with gate:
            self.is_inside = True
            self._log.append(self.name)
            try:
                await self.may_leave.wait()
            finally:
                self.is_inside = False


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


async def test_a_failure_inside_gives_the_place_back():
    """Whatever way a visitor leaves."""
    gate = Gate(1)
    with pytest.raises(ZeroDivisionError):
        async with gate:
            raise ZeroDivisionError
    assert gate.held == 0


@pytest.mark.parametrize("seed", range(40))
async def test_no_schedule_leaks_a_place_or_lets_too_many_in(seed):
    """Visitors come, leave and are cancelled at random; at the end the gate is empty and everybody had their turn."""
    rng = random.Random(seed)
    gate, log = Gate(rng.randint(1, 4)), []
    visitors: list[Visitor] = []
    for name in range(60):
        visitors.append(Visitor(gate, name, log))
        for _ in range(rng.randint(0, 3)):
            one = rng.choice(visitors)
            if rng.random() < 0.5:
                one.may_leave.set()
            else:
                one.task.cancel()
            if rng.random() < 0.5:
                await turns(rng.randint(1, 2))
        assert sum(visitor.is_inside for visitor in visitors) <= gate.places
        assert gate.held <= gate.places
    for visitor in visitors:
        visitor.may_leave.set()
    ends = await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
    assert log == sorted(log)
    assert repr(gate) == f"<Gate 0/{gate.places} held, 0 waiting>"
