"""Which processes a cluster consists of, with their commands. Pure: ports and paths are arguments, nothing starts."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.cluster.config import UpConfig
from deploy.cluster.processes import Part
from deploy.cluster.supervision import Policy
from workers.config import InstanceConfig

DRAIN_S = 3.0
"""How long running requests may take to finish when the cluster is stopped: a demonstration has nobody to wait for."""

PATIENCE = Policy(ending_s=DRAIN_S + 2.0)
"""Workers and replicas drain first and then have two seconds more before they are killed; the others end at once."""

ADMIN_HOST = "127.0.0.1"
"""Where the replicas' admin listeners are, whatever [proxy] says: beyond loopback they want a key, and TLS."""

QUIET_ROWS = 200
"""Rows at the start of the sample that are left out: its first minute is quiet, one request a second."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine gives to the plan."""

    program: tuple[str, ...]
    """The `forebay` command as words."""
    bus_command: tuple[str, ...] = ()
    """The embedded server's command; empty where the bus runs already."""
    bus_port: int = 0
    bus_url: str
    engine_ports: Sequence[int] = ()
    worker_admin_ports: Sequence[int] = ()
    progress_file: Path
    report_file: Path


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The parts in the order in which they start; they stop in the opposite order."""

    bus: tuple[Part, ...]
    engines: tuple[Part, ...]
    workers: tuple[Part, ...]
    replicas: tuple[Part, ...]
    traffic: tuple[Part, ...]

    @property
    def stages(self) -> tuple[tuple[Part, ...], ...]:
        """The parts by stages; each needs those before it."""
        return self.bus, self.engines, self.workers, self.replicas, self.traffic


def plan(config: UpConfig, here: Surroundings) -> Plan:
    """Return the parts of a cluster."""
    simulated = [
        InstanceConfig(id=f"sim-{number}", engine_url=f"http://127.0.0.1:{port}")
        for number, port in enumerate(here.engine_ports, start=1)
    ]
    return Plan(
        bus=(Part(name="bus", command=here.bus_command, policy=PATIENCE),) if here.bus_command else (),
        engines=tuple(
            engine_part(config, here, number, port) for number, port in enumerate(here.engine_ports, start=1)
        ),
        workers=tuple(
            worker_part(config, here, instance, admin_port)
            for instance, admin_port in zip((*config.engines, *simulated), here.worker_admin_ports, strict=True)
        ),
        replicas=tuple(replica_part(config, here, index) for index in range(config.replicas)),
        traffic=(traffic_part(config, here),) if config.demo_traffic else (),
    )


def engine_part(config: UpConfig, here: Surroundings, number: int, port: int) -> Part:
    """Return the part of one simulated engine."""
    words = ["engine", "--host", "127.0.0.1", "--port", str(port), "--seed", str(number)]
    words += ["--max-num-seqs", str(config.slots)] if config.slots else []
    return Part(name=f"engine-sim-{number}", command=(*here.program, *words), policy=PATIENCE)


def worker_part(config: UpConfig, here: Surroundings, instance: InstanceConfig, admin_port: int) -> Part:
    """Return the part that owns one engine's queue."""
    words = ["worker", "--instance", f"{instance.id}={instance.engine_url}"]
    words += ["--host", "127.0.0.1", "--port", "0", "--admin-port", str(admin_port), "--drain-s", str(DRAIN_S)]
    words += ["--slots", str(config.slots)] if config.slots else []
    return Part(
        name=f"worker-{instance.id}",
        command=(*here.program, *words),
        variables={"FOREBAY_WORKER_REDIS": here.bus_url},
        policy=PATIENCE,
    )


def replica_part(config: UpConfig, here: Surroundings, index: int) -> Part:
    """Return the part of one replica."""
    debug = "--debug-on-main-port" if config.debug_on_main_port else "--no-debug-on-main-port"
    words = ["proxy", "--name", f"replica-{index + 1}", "--host", config.host]
    words += ["--port", str(config.ports[index]), "--admin-port", str(config.admin_ports[index]), debug]
    words += ["--admin-host", ADMIN_HOST]
    words += ["--drain-s", str(DRAIN_S), *(["--strategy", config.strategy] if config.strategy else [])]
    return Part(
        name=f"replica-{index + 1}",
        command=(*here.program, *words),
        variables={"FOREBAY_PROXY_REDIS": here.bus_url},
        policy=PATIENCE,
    )


def traffic_part(config: UpConfig, here: Surroundings) -> Part:
    """Return the part that sends the sample of a trace, over and over, to all replicas in turn."""
    words = [
        "replay",
        "conv-sample",
        "--start",
        str(QUIET_ROWS),
        "--loop",
        "--quiet",
        "--speedup",
        f"{config.speedup:g}",
    ]
    words += [word for port in config.ports for word in ("--target", f"http://{dialled(config.host)}:{port}")]
    words += ["--progress-file", str(here.progress_file), "--json", str(here.report_file)]
    return Part(name="traffic", command=(*here.program, *words), policy=PATIENCE, is_repeated=True)


def dialled(host: str) -> str:
    """Return the address to dial for an address that was listened on.

    >>> dialled("0.0.0.0"), dialled("::"), dialled("10.0.0.5")
    ('127.0.0.1', '[::1]', '10.0.0.5')
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 # compared, not bound
    return f"[{host}]" if ":" in host else host
