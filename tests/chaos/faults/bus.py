"""Faults of the bus: gone, silent, empty, full, read-only, or closed to us."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Final

from deploy.embedded import EmbeddedServer
from tests.chaos.faults.base import Blow, Fault
from tests.chaos.stand import HOST
from tests.servers import bus_command


@contextlib.asynccontextmanager
async def bus_killed(blow: Blow) -> AsyncIterator[None]:
    """SIGKILL the server; afterwards an empty one is where it was."""
    os.kill(blow.stand.fleet.bus.pid, signal.SIGKILL)
    yield
    await blow.stand.start_bus()


@contextlib.asynccontextmanager
async def bus_stopped(blow: Blow) -> AsyncIterator[None]:
    """SIGSTOP the server: it accepts connections and answers nothing."""
    pid = blow.stand.fleet.bus.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def bus_flushed(blow: Blow) -> AsyncIterator[None]:
    """Let the server forget everything, scripts too."""
    await _say(blow, ("FLUSHALL",), ("SCRIPT", "FLUSH"))
    yield


@contextlib.asynccontextmanager
async def bus_read_only(blow: Blow) -> AsyncIterator[None]:
    """Make the server a replica of an empty one: it answers reads, from an empty store, and refuses writes."""
    async with EmbeddedServer() as master:
        await _say(blow, ("REPLICAOF", HOST, str(master.port)))
        try:
            yield
        finally:
            await _say(blow, ("REPLICAOF", "NO", "ONE"))


@contextlib.asynccontextmanager
async def bus_out_of_memory(blow: Blow) -> AsyncIterator[None]:
    """Let the server refuse whatever would need memory."""
    await _say(blow, ("CONFIG", "SET", "maxmemory", "1"))
    try:
        yield
    finally:
        await _say(blow, ("CONFIG", "SET", "maxmemory", "0"))


@contextlib.asynccontextmanager
async def bus_wants_a_password(blow: Blow) -> AsyncIterator[None]:
    """Let the server ask for a password that nobody has, and drop every connection."""
    password = "only the operator knows"  # noqa: S105 - of a server that lives for minutes
    await _say(blow, ("CONFIG", "SET", "requirepass", password), ("CLIENT", "KILL", "TYPE", "normal"))
    try:
        yield
    finally:
        await _say(blow, ("AUTH", password), ("CONFIG", "SET", "requirepass", ""))


async def _say(blow: Blow, *commands: tuple[str, ...]) -> None:
    answer = await asyncio.to_thread(bus_command, blow.stand.fleet.bus.port, *commands)
    assert b"-" not in {line[:1] for line in answer.split(b"\r\n")}, answer


BUS: Final = (
    Fault(name="Redis SIGKILL, back empty", strike=bus_killed, is_short=True, is_restart=True),
    Fault(name="Redis SIGSTOP 5 s", strike=bus_stopped, hold_s=5.0, is_short=True),
    Fault(name="Redis FLUSHALL", strike=bus_flushed, hold_s=2.0, is_short=True),
    Fault(name="Redis a read-only replica", strike=bus_read_only),
    Fault(name="Redis out of memory", strike=bus_out_of_memory),
    Fault(name="Redis wants another password", strike=bus_wants_a_password),
)
