"""Faults of Forebay's own processes and of the machine they run on."""

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from tests.chaos.faults.base import Blow, Fault, Skipped
from tests.chaos.ledger import Deserts

_ENDS: Final = "worker or proxy SIGTERM"

_BREAKS: Final = Deserts(breaks_streams=True)

_FAKETIME: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
)


@contextlib.asynccontextmanager
async def worker_killed(blow: Blow) -> AsyncIterator[None]:
    """SIGKILL a worker; afterwards it is started again, at its old address."""
    blow.stand.workers[blow.victim].kill()
    yield
    blow.stand.start_worker(blow.victim)


@contextlib.asynccontextmanager
async def worker_stopped(blow: Blow) -> AsyncIterator[None]:
    """SIGSTOP a worker: its sockets stand and accept, and nothing is said."""
    worker = blow.stand.workers[blow.victim]
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def worker_told_to_end(blow: Blow) -> AsyncIterator[None]:
    """SIGTERM a worker: it drains and ends; then it is started again."""
    worker = blow.stand.workers[blow.victim]
    worker.signal(signal.SIGTERM)
    del blow.stand.workers[blow.victim]
    yield
    await asyncio.to_thread(worker.status)
    blow.stand.start_worker(blow.victim)


@contextlib.asynccontextmanager
async def worker_in_another_hour(blow: Blow) -> AsyncIterator[None]:
    """Restart a worker in order, with a wall clock that is an hour ahead, or behind; and once more with a right one."""
    await _replace(blow, _with_clock_off(blow.rng.choice(("+1h", "-1h"))))
    yield
    await _replace(blow, {})


def _with_clock_off(offset: str) -> dict[str, str]:
    """Environment in which the wall clock is off; intervals are right, as on a host whose clock is wrong."""
    library = next((path for path in _FAKETIME if Path(path).exists()), None)
    if library is None:
        raise Skipped("libfaketime is not installed (Debian: faketime)")
    return {"LD_PRELOAD": library, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


async def _replace(blow: Blow, variables: dict[str, str]) -> None:
    old = blow.stand.workers.pop(blow.victim)
    old.signal(signal.SIGTERM)
    await asyncio.to_thread(old.status)
    blow.stand.start_worker(blow.victim, variables=variables)


@contextlib.asynccontextmanager
async def replica_killed(blow: Blow) -> AsyncIterator[None]:
    """SIGKILL a replica; afterwards it is started again, at its old address."""
    replica = blow.stand.replicas[blow.victim]
    replica.kill()
    yield
    blow.stand.start_replica(blow.victim)


@contextlib.asynccontextmanager
async def replica_told_to_end(blow: Blow) -> AsyncIterator[None]:
    """SIGTERM a replica: it finishes what runs and ends; then it is started again."""
    replica = blow.stand.replicas[blow.victim]
    replica.signal(signal.SIGTERM)
    yield
    await asyncio.to_thread(replica.status)
    blow.stand.start_replica(blow.victim)


@contextlib.asynccontextmanager
async def disk_full(blow: Blow) -> AsyncIterator[None]:
    """Let no process of ours write another byte into its logs."""
    folder = blow.stand.fleet.folder
    with _filled(folder) if folder.is_mount() else _no_file_may_grow(blow):
        yield


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """Fill a small file system to the last byte."""
    ballast = folder / "ballast"
    try:
        for size in (65_536, 64):
            with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _no_file_may_grow(blow: Blow) -> Iterator[None]:
    """Do the same where no file system of our own can be mounted: a limit of 0 bytes on files, EFBIG for ENOSPC."""
    pids = [pid for name, pid in blow.stand.processes().items() if name.startswith(("worker", "replica"))]
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


PARTS: Final = (
    Fault(name="worker SIGKILL", strike=worker_killed, deserts=_BREAKS, is_short=True, is_restart=True),
    Fault(name="worker SIGSTOP", strike=worker_stopped, hold_s=5.0, deserts=_BREAKS, is_short=True),
    Fault(name="worker SIGTERM", kind=_ENDS, strike=worker_told_to_end, is_restart=True),
    Fault(name="worker's clock an hour off", strike=worker_in_another_hour, is_restart=True),
    Fault(
        name="proxy SIGKILL",
        strike=replica_killed,
        hits="replica",
        deserts=Deserts(breaks_streams=True, untold=True, drops=True),
        is_short=True,
        is_restart=True,
    ),
    Fault(name="proxy SIGTERM", kind=_ENDS, strike=replica_told_to_end, hits="replica", is_restart=True),
    Fault(name="disk full for logs", strike=disk_full, is_short=True),
)
