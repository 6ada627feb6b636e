"""The processes that serve one policy, on loopback: engines, and bus, worker and replicas, or fronts.

Owns their beginnings and ends, and what is read off them from outside: CPU time, and what each engine has done.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec
import psutil

from deploy.ports import free_ports
from tests.bench.stand import bus_server, cpu_s, page, process, wait_for
from tests.routing.processes.plan import Policy

_ENGINES: Final = "tests.routing.processes.engines"
_FRONT: Final = "tests.routing.processes.front"
_QUIET: Final = ("--log-level", "warning", "--drain-s", "1")
_DONE: Final = re.compile(rb'^vllm:request_success_total\{[^}]*finished_reason="stop"[^}]*\} (\S+)$', re.MULTILINE)
_SLIP: Final = re.compile(rb"^forebay_sim_schedule_slip_seconds_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Readings(msgspec.Struct, frozen=True):
    """What can be read at one moment; the difference of two is what happened between them."""

    at_s: float
    cpu_s: float
    """CPU seconds of every process of the stand."""
    answered: tuple[int, ...]
    """Requests that each engine has answered."""
    slip_s: float
    """Time by which the machine has delayed steps, all engines together."""


class Stand:
    """Everything that serves one policy; `targets` is where its clients connect."""

    def __init__(self, stack: ExitStack, engine_urls: Sequence[str]) -> None:
        self.targets: list[str] = []
        self._stack = stack
        self._engine_urls = list(engine_urls)
        self._processes: list[psutil.Process] = []

    def read(self) -> Readings:
        """Look at everything."""
        pages = [page(f"{url}/metrics") for url in self._engine_urls]
        return Readings(
            time.monotonic(),
            sum(cpu_s(each) for each in self._processes),
            tuple(int(float(found[1])) if (found := _DONE.search(text)) else 0 for text in pages),
            sum(float(found[1]) for text in pages if (found := _SLIP.search(text))),
        )

    def start_engines(self, ports_and_speeds: Sequence[tuple[int, float]], options: Sequence[str]) -> str:
        """Start all engines in one process; the URL of the all-knowing router among them."""
        words = [_ENGINES, *options]
        for port, speed in ports_and_speeds:
            words += ["--engine", f"{port}:{speed!r}"]
        return f"http://127.0.0.1:{self._run(words, tells_port=True)}"

    def start_fronts(self, count: int) -> list[str]:
        """Start lean fronts; their URLs."""
        words = [_FRONT, *(word for url in self._engine_urls for word in ("--engine", url)), "--replicas", str(count)]
        ports = [self._run([*words, "--replica", str(index)], tells_port=True) for index in range(count)]
        return [f"http://127.0.0.1:{port}" for port in ports]

    def start_forebay(self, strategy: str, replicas: int) -> list[str]:
        """Start a bus, a worker for all engines and the replicas; URLs of these."""
        bus = self._stack.enter_context(bus_server())
        self._processes.append(psutil.Process(bus.pid))
        words = ["deploy.cli", "worker", "--redis", bus.url, *_QUIET]
        for index, url in enumerate(self._engine_urls):
            words += ["--instance", f"e{index}={url}"]
        self._run(words)
        ports = free_ports(2 * replicas)
        for index, (port, admin_port) in enumerate(zip(ports[:replicas], ports[replicas:], strict=True)):
            words = ["deploy.cli", "proxy", "--redis", bus.url, "--strategy", strategy, "--no-access-log", *_QUIET]
            self._run([*words, "--name", f"r{index}", "--port", str(port), "--admin-port", str(admin_port)])
        urls = [f"http://127.0.0.1:{port}" for port in ports[:replicas]]
        last = f'"e{len(self._engine_urls) - 1}"'.encode()
        for url, admin_port in zip(urls, ports[replicas:], strict=True):
            wait_for(f"{url}/v1/models", b'"id":')
            wait_for(f"http://127.0.0.1:{admin_port}/debug/instance_loads", last)
        return urls

    def _run(self, words: Sequence[str], *, tells_port: bool = False) -> int:
        """Start a process for the life of the stand; the port it tells."""
        child, port = self._stack.enter_context(process(words, tells_port=tells_port))
        self._processes.append(child)
        return port


@contextmanager
def stand(
    policy: Policy, speeds: Sequence[float], *, tokens_per_chunk: int, mean_output_tokens: float
) -> Iterator[Stand]:
    """Start engines of these speeds and what the policy needs; end everything."""
    ports = free_ports(len(speeds))
    options = ["--tokens-per-chunk", str(tokens_per_chunk), "--mean-output", str(mean_output_tokens)]
    with ExitStack() as stack:
        found = Stand(stack, [f"http://127.0.0.1:{port}" for port in ports])
        router_url = found.start_engines(list(zip(ports, speeds, strict=True)), options)
        if policy.is_forebay:
            found.targets = found.start_forebay(policy.name, policy.replicas)
        elif policy.name == "all_knowing":
            found.targets = [router_url]
        elif policy.name == "direct":
            found.targets = [f"http://127.0.0.1:{port}" for port in ports]
        else:
            found.targets = found.start_fronts(policy.replicas)
        yield found


def machine_s() -> float:
    """CPU seconds that the whole machine has been busy, with whatever."""
    busy = psutil.cpu_times()
    return float(busy.user + busy.system + busy.nice + getattr(busy, "irq", 0.0) + getattr(busy, "softirq", 0.0))


def cpus() -> int:
    """CPUs that may be used."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
