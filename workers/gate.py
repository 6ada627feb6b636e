"""A gate that lets a bounded number of requests through at once.

Classes of priority have weighted shares; within a class it is first come, first served. A place is given to a waiter
in the very step in which it becomes free, so nobody overtakes; one that is cancelled after it was given hands it on.
"""

import asyncio
from collections import deque
from types import TracebackType

from bus.hop.headers import Priority
from workers.shares import WEIGHTS, Shares


class Gate:
    """`await gate.enter(priority)` takes one of `places`, `gate.leave()` gives it back; `async with` does both."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.held = 0
        self._shares = Shares()
        self._lines: dict[Priority, deque[asyncio.Future[None]]] = {priority: deque() for priority in WEIGHTS}

    def __repr__(self) -> str:
        return f"<Gate {self.held}/{self.places} held, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._lines.values()))

    async def enter(self, priority: Priority = "normal") -> None:
        """Wait for a place."""
        if self.held < self.places and not self.waiting:
            self.held += 1
            return
        line = self._lines[priority]
        if not line:
            self._shares.returned(priority)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()  # the place had been given in the same turn
            elif waiter in line:  # else a place became free in the same turn, and went past this one
                line.remove(waiter)
            raise

    def leave(self) -> None:
        """Give a place back: hand it to the first of the class whose turn it is, else let it be free."""
        line = self._next_line()
        if line is None:
            self.held -= 1
        else:
            line.popleft().set_result(None)

    async def __aenter__(self) -> None:
        """Wait for a place."""
        await self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Give the place back."""
        self.leave()

    def _next_line(self) -> deque[asyncio.Future[None]] | None:
        """Line of the class whose turn it is; those who were cancelled and have not left their line cost no turn."""
        for line in self._lines.values():
            while line and line[0].done():
                line.popleft()
        waiting = [priority for priority, line in self._lines.items() if line]
        return self._lines[self._shares.next(waiting)] if waiting else None
