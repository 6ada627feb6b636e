"""Ctrl-C and SIGTERM as an event: the first asks for a clean end, the second hurries it. Knows no processes."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts(stop: asyncio.Event, hurry: Callable[[], None]) -> Iterator[None]:
    """Set `stop` on the first signal and call `hurry` on every later one, as long as the `with` lasts."""

    def heard() -> None:
        if stop.is_set():
            hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def unless_stopped(stop: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """Return what the work returns, or None as soon as `stop` is set; the work is cancelled then."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
