"""A gate that lets through at once what fits in a bounded number of places.

Classes of priority have weighted shares; within a class it is first come, first served. Places are given to a waiter
in the very step in which they become free, so nobody overtakes; one that is cancelled after that hands them on. Who
wants several waits until as many are free, and those whose turn comes later wait with it: let past, they would keep it
waiting for ever.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import NamedTuple

from bus.hop.headers import Priority
from workers.shares import WEIGHTS, Shares


class _Waiter(NamedTuple):
    places: int
    entered: asyncio.Future[None]


class Gate:
    """`await gate.enter(priority)` takes one of `places`, `gate.leave()` gives it back; `async with` does both."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.held = 0
        self._shares = Shares()
        self._lines: dict[Priority, deque[_Waiter]] = {priority: deque() for priority in WEIGHTS}

    def __repr__(self) -> str:
        return f"<Gate {self.held}/{self.places} held, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._lines.values()))

    async def enter(self, priority: Priority = "normal", places: int = 1) -> None:
        """Wait for so many places, at most all."""
        if self.held + places <= self.places and not self.waiting:
            self.held += places
            return
        line = self._lines[priority]
        if not line:
            self._shares.returned(priority)
        waiter = _Waiter(places, asyncio.get_running_loop().create_future())
        line.append(waiter)
        self._let_in()  # one place may be free while the first of another class waits for several
        try:
            await waiter.entered
        except asyncio.CancelledError:
            if waiter.entered.done() and not waiter.entered.cancelled():
                self.leave(places)  # they had been given in the same turn
            else:
                if waiter in line:  # else places became free in the same turn, and went past this one
                    line.remove(waiter)
                self._let_in()  # those behind it may want fewer
            raise

    def leave(self, places: int = 1) -> None:
        """Give so many places back, to those whose turn it is."""
        self.held -= places
        self._let_in()

    async def __aenter__(self) -> None:
        """Wait for a place."""
        await self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Give the place back."""
        self.leave()

    def _let_in(self) -> None:
        """Let in one after the other whose turn it is, as long as there is room for the next."""
        while (priority := self._next_class()) is not None:
            waiter = self._lines[priority][0]
            if self.held + waiter.places > self.places:
                return
            self._lines[priority].popleft()
            self._shares.took(priority)
            self.held += waiter.places
            waiter.entered.set_result(None)

    def _next_class(self) -> Priority | None:
        """The class whose turn it is; those who were cancelled and have not left their line cost no turn."""
        for line in self._lines.values():
            while line and line[0].entered.done():
                line.popleft()
        waiting = [priority for priority, line in self._lines.items() if line]
        return self._shares.turn(waiting) if waiting else None
