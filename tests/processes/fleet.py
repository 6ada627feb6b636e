"""A fleet of real processes on loopback: bus, engines, one queue worker an engine, replicas.

Every port is chosen by the system and read from what a process says; every process is stopped by its own id.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from deploy.embedded import EmbeddedServer
from deploy.tether import tethered

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0
POLL_S = 0.02
ADMIN = r"admin on port (\d+)"
INSTANTANEOUS = ("prepare_queue_depth", "ready_queue_depth", "active_prepare", "active_ready")

T = TypeVar("T")


def until(condition: Callable[[], T], what: object, *, limit_s: float = LIMIT_S) -> T:
    """Return the first true value of something observable; fails when the time is over, and shows `what` then."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(POLL_S)
    return value


def fetch(url: str, *, body: object = None, method: str | None = None) -> tuple[int, bytes]:
    """Status and body of a page of our own; status 0 where nobody answers."""
    data = None if body is None else msgspec.json.encode(body)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def gauge(page: bytes, name: str, **labels: str) -> float:
    """Sum of a metric's samples that carry these labels; 0 where there is none."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", page.decode(), re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for text, value in found if all(each in text for each in wanted))


class Part:
    """One process of the fleet, with what it writes in two files."""

    def __init__(
        self, name: str, folder: Path, words: Sequence[str], *, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                tethered([sys.executable, "-m", "deploy.cli", *words], parent_pid=os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(ROOT), **(variables or {})},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """Everything it has written."""
        return self.out.read_text() + self.err.read_text()

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until it has written something."""

        def find() -> re.Match[str] | None:
            status, text = self.process.poll(), self.text
            found = re.search(pattern, text)
            assert found or status is None, f"{self.name} ended with {status}: {text[-2000:]}"
            return found

        return until(find, f"{self.name} says {pattern}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def status(self) -> int:
        """Wait for its end and return its exit status."""
        return self.process.wait(LIMIT_S)

    def end(self) -> None:
        """End it, politely first."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()


class Engine:
    """One simulated engine, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fault(self, kind: str, **order: object) -> None:
        """Switch a fault on."""
        assert fetch(f"{self.url}/fault", body={"kind": kind, **order})[0] == 200

    def heal(self) -> None:
        """Switch every fault off, as soon as it lets anybody connect."""
        until(lambda: fetch(f"{self.url}/fault", method="DELETE")[0] == 200, f"{self.url} is healed")

    def running(self) -> float:
        """Requests it runs or holds waiting."""
        page = fetch(f"{self.url}/metrics")[1]
        return gauge(page, "vllm:num_requests_running") + gauge(page, "vllm:num_requests_waiting")


class Worker(Part):
    """One queue worker of one instance."""

    def __init__(
        self,
        name: str,
        folder: Path,
        words: Sequence[str],
        engine: Engine,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, folder, words, variables=variables)
        self.engine = engine

    @property
    def url(self) -> str:
        """Where proxies dial."""
        return self.said(r"listening on (http://\S+)")[1]

    @property
    def admin_url(self) -> str:
        """Its health and metrics."""
        return f"http://127.0.0.1:{self.said(ADMIN)[1]}"

    def inflight(self) -> float:
        """Requests it has accepted and not finished."""
        return gauge(fetch(f"{self.admin_url}/metrics")[1], "forebay_worker_inflight")


class Replica(Part):
    """One gateway replica."""

    @property
    def port(self) -> int:
        """Port of the API."""
        return int(self.said(r"API on port (\d+)")[1])

    @property
    def url(self) -> str:
        """Its API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Its admin pages."""
        return f"http://127.0.0.1:{self.said(ADMIN)[1]}"

    def loads(self) -> dict[str, dict[str, Any]]:
        """The instances of its /debug/instance_loads by id."""
        status, body = fetch(f"{self.admin_url}/debug/instance_loads")
        return {each["id"]: each for each in msgspec.json.decode(body)["instances"]} if status == 200 else {}

    def bus_state(self, pool: str = "default") -> str:
        """How it sees a pool on the bus: fresh, stale or blind."""
        body = fetch(f"{self.admin_url}/debug/instance_loads")[1]
        return str(msgspec.json.decode(body)["pools"][pool]["bus"]["state"])

    def metric(self, name: str, **labels: str) -> float:
        """Sum of one of its metrics."""
        return gauge(fetch(f"{self.admin_url}/metrics")[1], name, **labels)

    def lines(self) -> list[dict[str, Any]]:
        """Its access log."""
        return [msgspec.json.decode(line) for line in self.out.read_bytes().splitlines()]


class Fleet:
    """Everything together; leaving the `with` stops it all. `redis` is the URL of a bus of somebody else's."""

    running: "list[Fleet]" = []  # noqa: RUF012 - for whoever shows the logs of a failure

    def __init__(self, folder: Path, *, redis: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.bus = EmbeddedServer()
        self.redis = redis
        self.parts: list[Part] = []
        self.engines: list[Engine] = []
        self.workers: dict[str, Worker] = {}
        self.replicas: list[Replica] = []

    def __enter__(self) -> Self:
        if not self.redis:
            self.bus.start()
        Fleet.running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for part in reversed(self.parts):
                if part.process.poll() is None:
                    part.end()
        finally:
            self.bus.stop()
            Fleet.running.remove(self)

    def start(
        self,
        *,
        engines: int = 2,
        replicas: int = 2,
        engine: Sequence[str] = (),
        worker: Sequence[str] = (),
        replica: Sequence[str] = (),
    ) -> Self:
        """Start instances i1, i2, … and replicas with these options, and wait until all see each other."""
        for each in self.start_engines(*engine, count=engines):
            self.start_worker(f"i{len(self.workers) + 1}", each, *worker)
        for _ in range(replicas):
            self.start_replica(*replica)
        self.wait()
        return self

    def start_engines(self, *words: str, count: int = 1) -> list[Engine]:
        """Start engines in one process."""
        part = Part(f"engines-{len(self.parts)}", self.folder, ["engine", "--count", str(count), *words])
        self.parts.append(part)
        urls = part.said(rf"(http://\S+\n){{{count}}}")[0].split()
        self.engines += (started := [Engine(url) for url in urls])
        return started

    def start_worker(
        self, instance: str, engine: Engine, *words: str, variables: Mapping[str, str] | None = None
    ) -> Worker:
        """Start a worker for an instance; of two for one instance `workers` names the later."""
        options = ["--redis", self.redis or self.bus.url, "--instance", f"{instance}={engine.url}", *words]
        name = f"worker-{instance}-{len(self.parts)}"
        worker = self.workers[instance] = Worker(name, self.folder, ["worker", *options], engine, variables=variables)
        self.parts.append(worker)
        return worker

    def start_replica(self, *words: str) -> Replica:
        """Start a replica."""
        name = f"replica-{len(self.parts)}"
        options = ["--redis", self.redis or self.bus.url, "--port", "0", "--admin-port", "0", "--name", name, *words]
        replica = Replica(name, self.folder, ["proxy", *options])
        self.parts.append(replica)
        self.replicas.append(replica)
        return replica

    def wait(self) -> None:
        """Wait until every replica is ready and has a fresh record, with models, of every instance."""
        for replica in self.replicas:
            until(lambda replica=replica: fetch(f"{replica.admin_url}/ready")[0] == 200, f"{replica.name} is ready")
            until(lambda replica=replica: self.is_seen_by(replica), f"{replica.name} sees {list(self.workers)}")

    def is_seen_by(self, replica: Replica) -> bool:
        """Whether a replica has a record of every instance; fails if a worker has ended."""
        for worker in self.workers.values():
            assert worker.process.poll() is None, f"{worker.name} ended: {worker.text[-2000:]}"
        loads = replica.loads()
        return all(name in loads and loads[name]["state"] == "ready" and loads[name]["models"] for name in self.workers)

    def counts(self) -> dict[str, float]:
        """Every count of requests under way, wherever it is kept, that is not 0; unknown counts as 1."""
        found: dict[str, float] = {}
        for engine in self.engines:
            found[f"{engine.url} runs"] = engine.running()
        for worker in self.workers.values():
            found[f"{worker.name} in flight"] = worker.inflight()
        for replica in self.replicas:
            found[f"{replica.name} in flight"] = replica.metric("forebay_inflight")
            for name, load in replica.loads().items():
                found[f"{replica.name}: in transit to {name}"] = load["in_transit_requests"] + load["in_transit_tokens"]
                for signal_name in (*INSTANTANEOUS, "inflight", "pending_prefill_count", "active_decode_count"):
                    value = load["signals"][signal_name]["value"]
                    found[f"{replica.name}: {signal_name} of {name}"] = 1 if value is None else value
        return {what: value for what, value in found.items() if value}

    def wait_until_idle(self) -> None:
        """Wait until nothing is under way anywhere."""
        last: dict[str, float] = {}

        def is_idle() -> bool:
            last.clear()
            last.update(self.counts())
            return not last

        until(is_idle, last)

    def tails(self, length: int = 1500) -> list[tuple[str, str]]:
        """The end of every log."""
        return [(part.name, part.text[-length:]) for part in self.parts]
