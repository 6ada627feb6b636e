"""The test stand: bus, engine, the yardstick's hops and Forebay's, each a process of its own, on loopback.

Owns the processes, their ends, and what can be read off them from outside: CPU time, memory, commands on the bus.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from deploy.embedded import EmbeddedServer
from deploy.ports import free_ports
from deploy.tether import tethered
from tests.servers import valkey_binary

ROOT = Path(__file__).parents[2]

READY_S = 20.0
"""Longest wait for a process to serve, on a busy machine."""

SLOTS = 512
"""More than any load here has in flight: the queue's own cost is measured, not waiting in it."""


class NotReady(Exception):
    """A process of the stand ended or does not serve."""


@contextmanager
def process(words: Sequence[str], *, tells_port: bool = False) -> Iterator[tuple[psutil.Process, int]]:
    """Run a Python module until the end of the block: its process, and the port it printed if it is to print one."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            tethered([sys.executable, "-m", *words], parent_pid=os.getpid()),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if tells_port else subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            line = child.stdout.readline() if child.stdout else b"0"
            if not line.strip().isdigit():
                errors.seek(0)
                raise NotReady(f"{' '.join(words)}: {errors.read().decode(errors='replace')[-2000:]}")
            yield psutil.Process(child.pid), int(line)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout:
                child.stdout.close()


def page(url: str, timeout_s: float = 2.0) -> bytes:
    """Body of a page. Raises OSError."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - loopback
        body: bytes = answer.read()
        return body


def wait_for(url: str, wanted: bytes = b"", limit_s: float = READY_S) -> None:
    """Wait until a page is served and contains `wanted`. Raises NotReady."""
    deadline = time.monotonic() + limit_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            body = page(url)
            if wanted in body:
                return
            last = body[:200]
        except OSError as fault:
            last = fault
        time.sleep(0.05)
    raise NotReady(f"{url}: {last}")


class Relays:
    """One relay of two hops: where clients connect, and its processes from the outside in."""

    def __init__(self, url: str, hops: Sequence[psutil.Process]) -> None:
        self.url = url
        self.hops = tuple(hops)

    def cpu_s(self) -> float:
        """CPU seconds that all hops have used."""
        return sum(cpu_s(hop) for hop in self.hops)


class Forebay(Relays):
    """A replica and a queue worker."""

    def __init__(self, url: str, hops: Sequence[psutil.Process], *, proxy_admin: str, worker_admin: str) -> None:
        super().__init__(url, hops)
        self.proxy_admin = proxy_admin
        self.worker_admin = worker_admin

    @property
    def proxy(self) -> psutil.Process:
        """The replica."""
        return self.hops[0]

    @property
    def worker(self) -> psutil.Process:
        """The queue worker."""
        return self.hops[1]


class Stand:
    """Everything that a benchmark of requests or streams needs."""

    def __init__(self, bus: EmbeddedServer, engine_url: str, yardstick: Relays, forebay: Forebay) -> None:
        self.bus = bus
        self.engine_url = engine_url
        self.yardstick = yardstick
        self.forebay = forebay


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds, user and system, that a process has used.

    On Linux from the process's own CPU clock, in nanoseconds: psutil's times come in steps of 10 ms.
    """
    if sys.platform == "linux":
        return time.clock_gettime((~process.pid << 3) | 2)  # CPUCLOCK_SCHED of that process, see clock_getcpuclockid(3)
    times = process.cpu_times()
    return float(times.user + times.system)


def bus_server() -> EmbeddedServer:
    """Return the bus to measure on: the Valkey of the lock file, so that all measure on the same."""
    return EmbeddedServer(binary=valkey_binary())


def json_page(url: str) -> object:
    """Return a JSON page, decoded."""
    return json.loads(page(url))


@contextmanager
def forebay(
    bus_url: str, engine_url: str, *, worker: Sequence[str] = (), proxy: Sequence[str] = ()
) -> Iterator[Forebay]:
    """Run a queue worker and a replica as a user would start them; `worker` and `proxy` are further options."""
    port, proxy_admin, worker_admin = free_ports(3)
    with ExitStack() as stack:
        words = [
            "deploy.cli",
            "worker",
            "--redis",
            bus_url,
            "--instance",
            f"bench={engine_url}",
        ]
        words += ["--admin-port", str(worker_admin), "--drain-s", "1", *worker]
        worker_process, _ = stack.enter_context(process(words))
        words = ["deploy.cli", "proxy", "--redis", bus_url, "--port", str(port)]
        words += ["--admin-port", str(proxy_admin), "--drain-s", "1", *proxy]
        proxy_process, _ = stack.enter_context(process(words))
        wait_for(f"http://127.0.0.1:{port}/v1/models", b'"id":')
        yield Forebay(
            f"http://127.0.0.1:{port}",
            (proxy_process, worker_process),
            proxy_admin=f"http://127.0.0.1:{proxy_admin}",
            worker_admin=f"http://127.0.0.1:{worker_admin}",
        )


@contextmanager
def yardstick(bus_url: str, engine_url: str) -> Iterator[Relays]:
    """Run the yardstick's two hops."""
    module = "tests.bench.yardstick"
    with (
        process([module, "inner", "--upstream", engine_url], tells_port=True) as (inner, inner_port),
        process(
            [module, "outer", "--upstream", f"http://127.0.0.1:{inner_port}", "--redis", bus_url], tells_port=True
        ) as (outer, outer_port),
    ):
        yield Relays(f"http://127.0.0.1:{outer_port}", (outer, inner))


@contextmanager
def stand() -> Iterator[Stand]:
    """Start everything; end everything."""
    with bus_server() as bus, process(["tests.bench.engine"], tells_port=True) as (_, engine_port):
        engine_url = f"http://127.0.0.1:{engine_port}"
        slots = ("--slots", str(SLOTS))
        with yardstick(bus.url, engine_url) as bare, forebay(bus.url, engine_url, worker=slots) as ours:
            yield Stand(bus, engine_url, bare, ours)
