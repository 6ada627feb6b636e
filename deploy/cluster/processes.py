"""The processes of the parts: carries out what `supervision` decides, and nothing else.

Owns each part's process, its session and its log file; at the end of `run` the process is gone. Every part has a
session of its own, so that Ctrl-C on the terminal reaches only the supervisor.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from deploy.cluster.logs import LogFile
from deploy.cluster.supervision import Finished, Kill, Launch, Policy, Sleep, Supervision, Terminate
from deploy.tether import tethered

NOT_STARTED = 127
"""Status of a process that could not be started, as shells have it."""

SHOWN_LINES = 5
"""Last lines of a dead part's log that are shown."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster: its name, its command, and how patient its supervisor is."""

    name: str
    command: tuple[str, ...]
    variables: dict[str, str] = {}
    """What the process is told beside its command, where a password must not show in the list of processes."""
    policy: Policy = Policy()
    is_repeated: bool = False


class Death(msgspec.Struct, frozen=True):
    """A part that ended though nobody had asked it to."""

    name: str
    status: int
    pause_s: float
    last_lines: tuple[str, ...]

    def __str__(self) -> str:
        how = f"was killed by {signal_name(-self.status)}" if self.status < 0 else f"ended with status {self.status}"
        return f"{self.name} {how}; it starts again in {self.pause_s:.1f} s"


def signal_name(number: int) -> str:
    """Return the name of a signal.

    >>> signal_name(9)
    'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class PartProcess:
    """A part under supervision; `run` ends when the part has been stopped and its process is gone."""

    def __init__(
        self,
        part: Part,
        folder: Path,
        *,
        on_death: Callable[[Death], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.part = part
        self.log = LogFile(folder / f"{part.name}.log")
        self.supervision = Supervision(part.policy, is_repeated=part.is_repeated, now_s=clock())
        self.on_death = on_death
        self.clock = clock
        self.process: asyncio.subprocess.Process | None = None
        self.exit: asyncio.Task[int] | None = None
        self.nudge = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PartProcess {self.part.name} pid={self.pid} {self.supervision}>"

    @property
    def pid(self) -> int | None:
        """Process id while the part runs."""
        return self.process.pid if self.process else None

    def stop(self) -> None:
        """Ask the part to end for good; `run` returns when it has."""
        self.supervision.stop_requested(self.clock())
        self.nudge.set()

    def hurry(self) -> None:
        """Kill the part if it is still ending."""
        self.supervision.hurried(self.clock())
        self.nudge.set()

    async def run(self) -> None:
        """Keep the part running until it has been stopped; whatever happens, no process is left."""
        try:
            while not isinstance(decision := self.supervision.decide(self.clock()), Finished):
                match decision:
                    case Launch():
                        await self.launch()
                    case Terminate():
                        self.send(signal.SIGTERM)
                        self.supervision.terminated(self.clock())
                    case Kill():
                        self.send(signal.SIGKILL)
                        self.supervision.killed()
                    case Sleep(until_s=until_s):
                        await self.something(until_s)
        finally:
            await self.leave_nothing()

    async def launch(self) -> None:
        """Start the process; one that cannot be started counts as ended."""
        try:
            with self.log.open() as log:
                self.process = await asyncio.create_subprocess_exec(
                    *tethered(self.part.command, parent_pid=os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.part.variables},
                    start_new_session=True,
                )
        except OSError as error:
            with contextlib.suppress(OSError):
                self.log.path.write_text(f"{error}\n")
            self.ended(NOT_STARTED)
            return
        self.exit = asyncio.create_task(self.process.wait(), name=f"exit of {self.part.name}")
        self.supervision.launched(self.clock())

    async def something(self, until_s: float | None) -> None:
        """Wait until the process ends, somebody asks for something, or it is time."""
        self.nudge.clear()
        nudged = asyncio.create_task(self.nudge.wait())
        waiters: set[asyncio.Task[int] | asyncio.Task[bool]] = {nudged, *([self.exit] if self.exit else [])}
        limit_s = None if until_s is None else max(0.0, until_s - self.clock())
        try:
            await asyncio.wait(waiters, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudged.cancel()
        if self.exit and self.exit.done():
            self.ended(self.exit.result())

    def ended(self, status: int) -> None:
        """Note that the process is gone, and say so where nobody had asked for it."""
        self.send(signal.SIGKILL)  # whatever the process may have started in its session
        self.process = self.exit = None
        self.supervision.exited(self.clock(), status)
        if self.supervision.state == "waiting" and self.supervision.failures_in_a_row:
            pause_s = self.supervision.due_s - self.clock()
            self.on_death(Death(self.part.name, status, pause_s, tuple(self.log.last_lines(SHOWN_LINES))))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the part's session, if there is one."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    async def leave_nothing(self) -> None:
        """Kill what still runs when `run` ends before its time, and wait until it is gone."""
        if self.process and self.exit:
            self.send(signal.SIGKILL)
            await asyncio.wait([self.exit], timeout=self.part.policy.ending_s)
