"""Real engines, started by commands that the environment names: the repository has none, and looks for none.

`VLLM_SERVER` and `LLAMA_SERVER` are commands to which a port and the engine's own options are appended, and which then
serve one small model on that port of 127.0.0.1, for example `vllm serve MODEL --port`.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import pytest

from deploy.ports import free_ports
from deploy.tether import tethered
from tests.processes.fleet import fetch, gauge

#: A vLLM on a busy CPU takes its time.
START_S = 400.0


class Kind(msgspec.Struct, frozen=True):
    """One kind of engine: how it is started small, and how it says what it does."""

    name: str
    variable: str
    options: tuple[str, ...]
    """Few resources, so that 64 requests at once are too many."""
    worker_slots: int
    """Requests that the worker sends at once."""
    running: tuple[str, ...]
    """Gauges of what it runs and holds waiting."""


KINDS = {
    "llamacpp": Kind(
        "llamacpp",
        "LLAMA_SERVER",
        ("--parallel", "4", "--threads-http", "160", "--metrics"),
        4,
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ),
    "vllm": Kind(
        "vllm",
        "VLLM_SERVER",
        ("--num-gpu-blocks-override", "32", "--max-num-seqs", "16"),
        64,  # more than it runs, so that its own queue and its KV cache fill
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ),
}


class RealEngine:
    """One engine process and its children; leaving the `with` ends them."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        command = os.environ.get(kind.variable, "")
        if not command:
            pytest.skip(
                f"no {kind.name} here: {kind.variable} names no command that starts one (deploy/docs/engines.md)"
            )
        self.kind = kind
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{kind.name}.log"
        words: Sequence[str] = [*shlex.split(command), str(port), *kind.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                tethered(words, parent_pid=os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_S
        while fetch(f"{self.url}/health")[0] != 200:
            assert self.process.poll() is None, f"it has ended: {self.tail()}"
            assert time.monotonic() < deadline, f"not up within {START_S:g} s: {self.tail()}"
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def model(self) -> str:
        """The model it serves."""
        return str(msgspec.json.decode(fetch(f"{self.url}/v1/models")[1])["data"][0]["id"])

    def metrics(self) -> bytes:
        """Its metrics page; empty when it does not come."""
        return fetch(f"{self.url}/metrics")[1]

    def running(self) -> float | None:
        """Requests it runs or holds waiting; None when it does not say."""
        page = self.metrics()
        return sum(gauge(page, name) for name in self.kind.running) if page else None

    def kill_core(self) -> None:
        """Kill what computes, without a word: its children where it has some, as vLLM has, else itself."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        for each in children or [self.process]:
            each.kill()

    def kill(self) -> None:
        """End it with all its children, which share a session of their own."""
        children: list[Any] = []
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        psutil.wait_procs(children, timeout=10)

    def tail(self) -> str:
        """The end of what it has written."""
        return self.log.read_text(errors="replace")[-2000:]
