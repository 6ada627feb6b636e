"""The fleet that is broken: real processes, and a link between any two that talk to each other.

Owns processes, links and ports; a part that is started again has its old address. Knows nothing of faults or load.
"""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.embedded import EmbeddedServer
from deploy.engine.batching import EngineModel
from deploy.ports import free_ports
from tests.chaos.links import Link
from tests.processes.fleet import Engine, Fleet, Replica, Worker, fetch, until

#: Workers listen on the first address and say that they listen on the second: there a link listens on the same port.
HOST: Final = "127.0.0.1"
LINKED_HOST: Final = "127.0.0.2"

TTL_S: Final = 1.5
"""Life of a record: the default."""

#: Less patient than the defaults, as an operator whose engines answer within a second would have it.
WORKER: Final = ("--scrape-interval-ms", "250")
REPLICA: Final = ("--tries", "3")

#: Longest wait for a first event, and between two bytes, for an engine of speed 1; a slower one is given more: between
#: two events of four tokens it may prefill four of the longest prompts. A plain answer comes in one piece, and takes
#: longer in a burst on the three engines that are left.
WORKER_WAITS_S: Final = (3.2, 3.0)
REPLICA_WAITS_S: Final = (6.0, 5.0)

#: Twice as fast as the default, so that a second holds some 25 requests.
MODEL: Final = EngineModel(speed=2.0)


class Seat:
    """What stays when a worker or a replica is started again: its ports and its links."""

    def __init__(self, bus: Link, *, engine: Link | None = None, worker: Link | None = None) -> None:
        self.port, self.admin_port = free_ports(2)
        self.bus = bus
        self.engine = engine
        self.worker = worker

    @property
    def links(self) -> list[Link]:
        """All of them."""
        return [link for link in (self.bus, self.engine, self.worker) if link is not None]


class Stand:
    """Bus, engines with a worker each, replicas, and the links between them."""

    def __init__(
        self,
        folder: Path,
        *,
        instances: int = 4,
        replicas: int = 3,
        engine: EngineModel | None = None,
        patience: float = 1.0,
    ) -> None:
        self.patience = patience
        """Factor on every limit of a wait."""
        self.engine_model = engine or MODEL
        self.fleet = Fleet(folder)
        self.seats: dict[str, Seat] = {}
        """By instance (`i1`, …) and by replica (`r1`, …)."""
        self.workers: dict[str, Worker] = self.fleet.workers
        self.replicas: dict[str, Replica] = {}
        self._instances = [f"i{number}" for number in range(1, instances + 1)]
        self._replicas = [f"r{number}" for number in range(1, replicas + 1)]

    async def __aenter__(self) -> "Stand":
        self.fleet.__enter__()
        # not in threads: what a thread starts ends with it
        engines = self.fleet.start_engines(
            "--tokens-per-chunk", "4", "--speed", str(self.engine_model.speed), count=len(self._instances)
        )
        for name, engine in zip(self._instances, engines, strict=True):
            await self._seat_worker(name, engine)
            self.start_worker(name)
        for name in self._replicas:
            self.seats[name] = Seat(await self._bus_link())
            self.start_replica(name)
        await self.whole()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self.fleet.__exit__()
        finally:
            for seat in self.seats.values():
                for link in seat.links:
                    await link.stop()

    @property
    def replica_urls(self) -> list[str]:
        """Where the balancer sends requests, whoever lives."""
        return [self.replica_url(name) for name in self._replicas]

    def replica_url(self, name: str) -> str:
        """Where a replica is reached, whether it lives or not."""
        return f"http://{HOST}:{self.seats[name].port}"

    @property
    def engine_names(self) -> list[str]:
        """Instances, in order."""
        return self._instances

    def engine(self, instance: str) -> Engine:
        """The engine itself, not by its link."""
        return self.fleet.engines[self._instances.index(instance)]

    def links(self, kind: str) -> dict[str, Link]:
        """The links `to worker`, `to engine` or `to bus`, by the seat they belong to."""
        attribute = kind.removeprefix("to ")
        found = {name: getattr(seat, attribute) for name, seat in self.seats.items()}
        return {name: link for name, link in found.items() if link is not None}

    # -- starting parts

    async def _bus_link(self) -> Link:
        return await Link((HOST, self.fleet.bus.port)).start()

    async def _seat_worker(self, name: str, engine: Engine) -> None:
        port = int(engine.url.rpartition(":")[2])
        seat = self.seats[name] = Seat(await self._bus_link(), engine=await Link((HOST, port)).start())
        seat.worker = await Link((HOST, seat.port), host=LINKED_HOST, port=seat.port).start()

    def start_worker(self, name: str, *, variables: dict[str, str] | None = None) -> Worker:
        """Start the worker of an instance in its seat."""
        seat = self.seats[name]
        assert seat.engine is not None
        engine = Engine(f"http://{HOST}:{seat.engine.port}")
        ports = ("--port", str(seat.port), "--admin-port", str(seat.admin_port), "--advertise-host", LINKED_HOST)
        bus = ("--redis", f"redis://{HOST}:{seat.bus.port}/0")
        waits = self._waits(WORKER_WAITS_S)
        return self.fleet.start_worker(name, engine, *bus, *ports, *WORKER, *waits, variables=variables)

    def start_replica(self, name: str) -> Replica:
        """Start a replica in its seat."""
        if name in self.replicas:
            self.fleet.replicas.remove(self.replicas[name])
        seat = self.seats[name]
        ports = ("--port", str(seat.port), "--admin-port", str(seat.admin_port))
        bus = ("--redis", f"redis://{HOST}:{seat.bus.port}/0")
        waits = self._waits(REPLICA_WAITS_S)
        self.replicas[name] = self.fleet.start_replica(*bus, *ports, *REPLICA, *waits)
        return self.replicas[name]

    def _waits(self, longest_s: tuple[float, float]) -> tuple[str, ...]:
        """Options that say how long to wait, by the engines' speed."""
        first_s, silence_s = (each * self.patience / self.engine_model.speed for each in longest_s)
        return "--first-event-timeout-s", str(first_s), "--silence-timeout-s", str(silence_s)

    async def start_bus(self) -> None:
        """Start an empty server where the old one was."""
        old = self.fleet.bus
        old.stop()
        self.fleet.bus = EmbeddedServer(port=old.port)
        for step_s in self.fleet.bus.starting():
            await asyncio.sleep(step_s)

    # -- looking

    async def whole(self, *, limit_s: float = 30.0) -> None:
        """Wait until every replica is ready, and sees and trusts every instance."""
        await self.watched(self.is_whole, "everything is as before", limit_s=limit_s)

    async def watched(self, look: Callable[[], object], what: str, *, limit_s: float = 30.0) -> None:
        """Wait for something observable while everything else goes on."""
        await asyncio.to_thread(until, look, what, limit_s=limit_s)

    def is_whole(self) -> bool:
        """Whether every replica is ready, has a fresh record of every instance and holds nothing against it."""
        return all(self._is_content(replica) for replica in self.fleet.replicas)

    def _is_content(self, replica: Replica) -> bool:
        if fetch(f"{replica.admin_url}/ready")[0] != 200 or not self.fleet.is_seen_by(replica):
            return False
        return not any(load["is_ejected"] for load in replica.loads().values())

    def revive(self) -> list[str]:
        """Start again what has died though nobody killed it; the last words of each."""
        found = []
        for name, part in [*self.workers.items(), *self.replicas.items()]:
            if part.process.poll() is not None:
                said = [line for line in part.text.splitlines() if re.search(r"\w{3}", line)] or ["nothing"]
                found.append(f"{name} died, saying: {said[-1].strip(' |')[:200]}")
                self.start_worker(name) if name in self.workers else self.start_replica(name)
        return found

    def processes(self) -> dict[str, int]:
        """Process ids of everything that runs now, by name."""
        found = {"bus": self.fleet.bus.pid} if self.fleet.bus.is_running() else {}
        found |= {part.name: part.process.pid for part in self.fleet.parts if part.process.poll() is None}
        return found


def mounted(folder: Path, size_kb: int) -> bool:
    """Mount a small file system of its own on a folder; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Take it away again."""
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)  # noqa: S607
