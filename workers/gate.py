"""A gate that lets a bounded number of requests through at once, first come, first served.

A place is given to a waiter in the very step in which it becomes free, so nobody overtakes; one that is cancelled
after it was given hands it on.
"""

import asyncio
from collections import deque
from types import TracebackType


class Gate:
    """`async with gate:` holds one of `places` places."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.held = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<Gate {self.held}/{self.places} held, {len(self._waiters)} waiting>"

    async def __aenter__(self) -> None:
        """Wait for a place."""
        if self.held < self.places and not self._waiters:
            self.held += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release()  # the place had been given in the same turn
            elif waiter in self._waiters:  # else a place became free in the same turn, and went past this one
                self._waiters.remove(waiter)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Give the place back."""
        self._release()

    def _release(self) -> None:
        """Hand the place to the first who waits, else let it be free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.held -= 1
