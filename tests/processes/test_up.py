import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.ports import why_busy
from tests.processes.fleet import ROOT, fetch, until

pytestmark = pytest.mark.processes


class Up:
    """A running `forebay up`, its output in a file."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.port = free_row(4)
        self.folder = folder
        ports = ["--port", str(self.port), "--admin-port", str(self.port + 2), "--replicas", "2"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deploy.cli", "up", *ports, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **variables},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What has been printed so far."""
        return (self.folder / "output").read_text()

    @property
    def urls(self) -> list[str]:
        """The replicas."""
        return [f"http://127.0.0.1:{self.port + index}" for index in range(2)]

    def until_said(self, pattern: str) -> str:
        """Wait until something is printed."""

        def find() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text
            return re.search(pattern, self.text)

        return until(find, pattern)[0]

    def parts(self) -> list[psutil.Process]:
        """Return the processes of the cluster."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, *words: str) -> psutil.Process:
        """Return the process whose command has these words."""
        return next(each for each in self.parts() if set(words) <= set(each.cmdline()))

    def status(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(40)


def free_row(count: int) -> int:
    """Return the first of some free ports in a row, below those the system gives to connections."""
    start = 15_000 + os.getpid() % 10_000
    return next(
        port
        for port in range(start, 32_000, count)
        if not any(why_busy("127.0.0.1", port + index) for index in range(count))
    )


def alive(parts: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run."""
    return [each for each in parts if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def up(tmp_path) -> Iterator[Callable[..., Up]]:
    """Start a cluster, and end what a failing test leaves."""
    started: list[Up] = []

    def start(*words: str, **variables: str) -> Up:
        started.append(Up(tmp_path, *words, **variables))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()  # its parts are tied to it
            each.process.wait()


def answered(text: str) -> int:
    """Give the number of requests of a summary."""
    return int(re.search(r"^requests   (\d+) in", text, re.MULTILINE)[1])


def test_run_s_ends_the_demonstration_with_a_summary(up, tmp_path):
    """RUN_S=8 ends with status 0 and a summary without errors, and leaves no process and no file."""
    cluster = up("--sim", "2", "--demo-traffic", RUN_S="8")
    cluster.until_said(r"done [1-9]")
    parts = cluster.parts()
    assert len(parts) == 8  # bus, 2 engines, 2 workers, 2 replicas, traffic
    assert cluster.status() == 0, cluster.text
    assert alive(parts) == []
    assert answered(cluster.text) > 5
    assert "errors     0" in cluster.text
    assert re.search(r"TTFT       p50 \d+ ms, p99 \d+ ms", cluster.text)
    assert re.search(r"instances  sim-1 \d+ %, sim-2 \d+ %", cluster.text)
    assert "restarts   none" in cluster.text
    assert [each.name for each in tmp_path.iterdir()] == ["output"]


def test_ctrl_c_ends_everything_after_a_killed_worker_came_back(up):
    """A killed worker is started again and the view says so; then Ctrl-C ends all parts, with status 0."""
    cluster = up("--sim", "2", "--demo-traffic")
    cluster.until_said(r"done [1-9]")
    victim = next(each for each in cluster.parts() if "worker" in each.cmdline())
    instance = next(word for word in victim.cmdline() if word.startswith("sim-")).split("=")[0]
    victim.kill()
    cluster.until_said(rf"restarted worker-{instance} ×1")
    parts = cluster.parts()
    assert len(parts) == 8
    for url in cluster.urls:
        page = f"{url}/debug/instance_loads"
        until(lambda page=page: fetch(page)[1].count(b'"state":"ready"') == 2, "both instances are back")
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.status() == 0, cluster.text
    assert alive(parts) == []
    assert f"restarts   worker-{instance} ×1" in cluster.text


def test_a_replay_through_the_cluster_is_answered_whole(up, tmp_path):
    """200 rows of a recorded trace through eight engines and two replicas: every engine is used, none fails."""
    cluster = up("--sim", "8")
    cluster.until_said("Forebay is up")
    targets = [word for url in cluster.urls for word in ("--target", url)]
    replay = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "replay", "conv-sample", "--limit", "200", "--rate", "16", *targets],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert re.match(r"200 of 200 requests answered in [0-9.]+ s, 0 failed\n", replay.stdout), replay.stdout
    parts = cluster.parts()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0, cluster.text
    assert alive(parts) == []
    assert answered(cluster.text) == 200
    assert len(re.findall(r"sim-\d [1-9]\d* %", cluster.text.split("instances  ")[1].split("\n")[0])) == 8
