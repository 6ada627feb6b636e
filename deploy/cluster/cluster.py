"""The cluster as a whole: its parts started stage by stage, watched, and stopped in the opposite order.

Owns the part processes. Knows nothing of what is shown.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from bus.errors import ForebayError
from deploy.cluster.plan import Plan
from deploy.cluster.processes import Death, Part, PartProcess
from deploy.ports import why_busy

START_LIMIT_S = 30.0
"""Longest wait for a stage to be ready; a Python process on a busy machine needs a second or two."""

POLL_S = 0.05

TRIES_AT_START = 3
"""Deaths in a row after which a part that has never been ready is given up, and the start with it."""

USAGE_ERROR = 2
"""Exit status of a part that was told something impossible: to start it again would not help."""

KEPT_DEATHS = 20

Probe = Callable[[], bool]


class ClusterFailed(ForebayError):
    """A part did not start."""


class PortBusy(ForebayError):
    """A port the cluster needs is taken."""


def check_ports(host: str, ports: Iterable[int], options: str) -> None:
    """Raise PortBusy for the first port that cannot be listened on."""
    for port in ports:
        reason = why_busy(host, port)
        if reason:
            raise PortBusy(f"{host}:{port} cannot be listened on: {reason}; choose another with {options}")


class Cluster:
    """Running parts by name; leaving the `async with` stops them all."""

    def __init__(self, plan: Plan, folder: Path, *, on_death: Callable[[Death], None] = lambda _: None) -> None:
        self.plan = plan
        self.folder = folder
        self.parts: dict[str, PartProcess] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.deaths: deque[Death] = deque(maxlen=KEPT_DEATHS)
        self.on_death = on_death
        self.is_in_haste = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def start(self, stage: Iterable[Part], probes: Iterable[Probe] = ()) -> None:
        """Start a stage and wait until all its probes are true; raises ClusterFailed."""
        for part in stage:
            process = self.parts[part.name] = PartProcess(part, self.folder, on_death=self.died)
            self.tasks[part.name] = asyncio.create_task(process.run(), name=f"supervisor of {part.name}")
        waiting = list(probes)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while waiting := [probe for probe in waiting if not probe()]:
                    self.give_up_if_hopeless()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            names = ", ".join(part.name for part in stage)
            raise ClusterFailed(
                f"{names}: not ready after {START_LIMIT_S:.0f} s; see the logs in {self.folder}"
            ) from None

    def give_up_if_hopeless(self) -> None:
        """Raise ClusterFailed if a part keeps ending while the cluster starts."""
        for process in self.parts.values():
            state = process.supervision
            if state.failures_in_a_row >= TRIES_AT_START or (
                state.failures_in_a_row and state.last_status == USAGE_ERROR
            ):
                words = process.log.last_lines(1)
                raise ClusterFailed(f"{process.part.name} does not start: {words[0] if words else 'it says nothing'}")

    def died(self, death: Death) -> None:
        """Note a death and hand it on."""
        self.deaths.append(death)
        self.on_death(death)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each part had to be started again, without those that never had to."""
        return {name: part.supervision.restarts for name, part in self.parts.items() if part.supervision.restarts}

    def cut_logs(self) -> None:
        """Keep every log within its bound."""
        for part in self.parts.values():
            part.log.cut()

    async def stop(self, stage: Iterable[Part]) -> None:
        """Stop the parts of a stage and wait until their processes are gone."""
        names = [part.name for part in stage if part.name in self.parts]
        for name in names:
            self.parts[name].stop()
            if self.is_in_haste:
                self.parts[name].hurry()
        await asyncio.gather(*(self.tasks[name] for name in names), return_exceptions=True)

    async def down(self) -> None:
        """Stop everything: traffic, replicas, workers, engines, bus."""
        try:
            for stage in reversed(self.plan.stages):
                await self.stop(stage)
        finally:
            for task in self.unfinished():
                task.cancel()  # ends in the part's own `finally`, which kills its process

    def unfinished(self) -> Iterator[asyncio.Task[None]]:
        """Yield the supervisors that still run."""
        return (task for task in self.tasks.values() if not task.done())

    def hurry(self) -> None:
        """Stop waiting for anybody: what is ending, and what will be asked to end, is killed."""
        self.is_in_haste = True
        for part in self.parts.values():
            part.hurry()
