import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.ports import why_busy

ROOT = Path(__file__).parents[3]
LIMIT_S = 30.0

pytestmark = pytest.mark.processes


class Up:
    """A running `forebay up` in a process of its own, its output in a file."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.port = free_row(4)
        self.admin_port = self.port + 2
        self.output = folder / "output"
        ports = ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("up_with_fakes.py")), *ports, "--sim", "2", *words],
                stdout=file,
                stderr=file,
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **variables},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What has been printed so far."""
        return self.output.read_text()

    def parts(self) -> list[psutil.Process]:
        """Return the processes of the cluster."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something can be observed, or fail with what was printed."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    def status(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(LIMIT_S)


def free_row(count: int) -> int:
    """Return the first of some ports in a row that are free, below those the system gives to connections."""
    while True:
        port = random.randrange(15_000, 30_000)
        if not any(why_busy("127.0.0.1", port + index) for index in range(count)):
            return port


@pytest.fixture
def up(tmp_path) -> Iterator[Callable[..., Up]]:
    """Start clusters, and kill what a failing test leaves."""
    started: list[Up] = []

    def start(*words: str, **variables: str) -> Up:
        started.append(Up(tmp_path, *words, **variables))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def alive(parts: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run."""
    return [each for each in parts if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_leaves_nothing(up, tmp_path, number):
    """Ctrl-C and SIGTERM end every part; status 0, a summary, no folder and no process left."""
    cluster = up("--demo-traffic")
    cluster.until(lambda: "done 9" in cluster.text)
    parts = cluster.parts()
    assert len(parts) == 8
    cluster.process.send_signal(number)
    assert cluster.status() == 0, cluster.text
    assert alive(parts) == []
    assert "requests   9" in cluster.text
    assert "TTFT       p50 21 ms, p99 31 ms" in cluster.text
    assert "restarts   none" in cluster.text
    assert [each.name for each in tmp_path.iterdir()] == ["output"]


def test_run_s_ends_by_itself_with_a_summary(up):
    """RUN_S, the plain variable too, bounds the run; without traffic the replicas' own counts are shown."""
    cluster = up(RUN_S="1.2")
    assert cluster.status() == 0
    assert "requests   20 in 1." in cluster.text
    assert "sim-1 50 %, sim-2 50 %" in cluster.text


def test_admin_pages_with_a_key_are_shown_it(up, tmp_path):
    """The replicas' own configuration names the file, and the view is no blinder for it."""
    (tmp_path / "key").write_text("open-sesame-open-sesame\n")
    cluster = up(RUN_S="1.2", FOREBAY_PROXY_ADMIN_KEY_FILE=str(tmp_path / "key"))
    assert cluster.status() == 0, cluster.text
    assert "sim-1 50 %, sim-2 50 %" in cluster.text


def test_a_key_of_the_admin_pages_that_is_none_is_said_before_anything_starts(up, tmp_path):
    """Nothing is started and nothing is left."""
    (tmp_path / "key").write_text("short\n")
    cluster = up(FOREBAY_PROXY_ADMIN_KEY_FILE=str(tmp_path / "key"))
    assert cluster.status() == 2
    assert cluster.text.count("\n") == 1
    assert "--admin-key-file" in cluster.text


def test_where_replicas_speak_tls_the_greeting_says_so_and_demo_traffic_is_refused(up):
    """What cannot work is said in a line, before anything starts."""
    tls = {"FOREBAY_PROXY_TLS_CERT": "chain.pem", "FOREBAY_PROXY_TLS_KEY": "key.pem"}
    cluster = up(RUN_S="0.1", **tls)
    assert cluster.status() == 0
    assert f"Forebay is up: https://127.0.0.1:{cluster.port} " in cluster.text
    cluster = up("--demo-traffic", **tls)
    assert cluster.status() == 2
    assert "--demo-traffic speaks plain HTTP" in cluster.text
    assert "starting" not in cluster.text


def test_what_a_replica_would_refuse_is_said_before_anything_starts(up):
    """Its variables are read as it reads them."""
    cluster = up(FOREBAY_PROXY_TRIES="0")
    assert cluster.status() == 2
    assert "FOREBAY_PROXY_TRIES" in cluster.text or "--tries" in cluster.text
    assert "starting" not in cluster.text


def test_a_part_that_dies_is_restarted_and_the_view_says_so(up):
    """A replica that dies at its first question comes back; its last words and the restart are shown."""
    cluster = up("--demo-traffic", RUN_S="4", FAKE_CRASH="1")
    cluster.until(lambda: "replica-1 ended with status 7" in cluster.text)
    assert cluster.status() == 0
    assert "| no water left" in cluster.text
    assert "restarted replica-1 ×" in cluster.text
    assert re.search(r"restarts   replica-1 ×\d", cluster.text)
    assert "logs: " in cluster.text


def test_a_killed_part_comes_back(up):
    """SIGKILL from outside is answered with a new process."""
    cluster = up()
    cluster.until(lambda: "Forebay is up" in cluster.text)
    victim = next(each for each in cluster.parts() if "worker" in each.cmdline())
    victim.kill()
    cluster.until(lambda: "worker-sim-1 ×1" in cluster.text or "worker-sim-2 ×1" in cluster.text)
    assert len(cluster.parts()) == 7
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.status() == 0


def test_a_busy_port_is_one_line_before_anything_starts(up, tmp_path):
    """Nothing is started and nothing is left when a port is taken."""
    first = up()
    first.until(lambda: "Forebay is up" in first.text)
    second = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "up", "--port", str(first.port), "--admin-port", str(free_row(2))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    assert f"127.0.0.1:{first.port} cannot be listened on" in second.stderr
    assert "--port" in second.stderr


def test_a_part_that_cannot_start_ends_the_whole_with_its_words(up):
    """What never comes up is not tried for ever: one line says which part and what it said."""
    cluster = up("--slots", "13")
    cluster.until(lambda: cluster.process.poll() is not None)
    assert cluster.status() == 1
    assert re.search(r"forebay: worker-sim-\d does not start: 13 slots bring bad luck", cluster.text)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has more than one address on loopback")
def test_replicas_of_another_address_keep_their_admin_pages_on_loopback(up):
    """`--host` is where clients come in; the cluster is ready when both answer where they are."""
    cluster = up("--host", "127.0.0.2")
    cluster.until(lambda: "dashboard" in cluster.text)
    assert f"Forebay is up: http://127.0.0.2:{cluster.port} " in cluster.text
    assert f"dashboard: http://127.0.0.1:{cluster.admin_port}/dashboard" in cluster.text
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.status() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_nothing_survives_a_killed_supervisor(up):
    """SIGKILL of the supervisor takes every part with it."""
    cluster = up("--demo-traffic")
    cluster.until(lambda: "Forebay is up" in cluster.text)
    cluster.until(lambda: len(cluster.parts()) == 8)
    parts = cluster.parts()
    cluster.process.kill()
    cluster.until(lambda: not alive(parts))


def test_a_signal_during_the_start_stops_it(up):
    """Whoever changes their mind at once is not kept waiting."""
    cluster = up()
    cluster.until(lambda: "starting 7 processes" in cluster.text)
    parts = cluster.parts()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.status() == 0
    assert alive(parts) == []
