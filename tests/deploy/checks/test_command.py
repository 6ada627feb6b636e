import os
import socket

import pytest

from deploy.cli import status_of
from deploy.embedded import EmbeddedServer
from deploy.ports import free_ports


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No variable and no file of the machine reaches a test; the proxy's ports are free ones."""
    for name in os.environ:
        if name.startswith("FOREBAY_"):
            monkeypatch.delenv(name)
    port, admin_port = free_ports(2)
    monkeypatch.setenv("FOREBAY_PROXY_PORT", str(port))
    monkeypatch.setenv("FOREBAY_PROXY_ADMIN_PORT", str(admin_port))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def bus():
    """Give a running bus."""
    with EmbeddedServer() as server:
        yield server


def check(capsys, *words: str) -> tuple[int, list[str]]:
    """Run `forebay check` and return its status and lines."""
    status = status_of(["check", *words])
    return status, capsys.readouterr().out.splitlines()


def test_all_is_well(capsys, bus):
    """A bus, free ports and readable settings: status 0, no wrong line."""
    status, lines = check(capsys, "--redis", bus.url)
    assert status == 0, lines
    assert not any(line.startswith("wrong") for line in lines)
    assert any("configuration reads well" in line for line in lines)


def test_everything_wrong_is_said_at_once(capsys, monkeypatch, bus):
    """A wrong variable of one command does not hide the dead engine of another; status 1."""
    (dead,) = free_ports(1)
    monkeypatch.setenv("FOREBAY_PROXY_TRIES", "99")
    monkeypatch.setenv("FOREBAY_WORKER_INSTANCE", f"http://127.0.0.1:{dead}")
    monkeypatch.setenv("FOREBAY_WORKER_REDIS", bus.url)
    status, lines = check(capsys)
    wrong = [line for line in lines if line.startswith("wrong")]
    assert status == 1
    assert any("--tries: '99'" in line and "FOREBAY_PROXY_TRIES" in line for line in wrong)
    assert any("cannot be reached" in line for line in wrong)


def test_replicas_and_workers_on_different_buses_are_wrong(capsys, monkeypatch, bus):
    """They would never see each other."""
    monkeypatch.setenv("FOREBAY_PROXY_REDIS", bus.url)
    monkeypatch.setenv("FOREBAY_WORKER_REDIS", bus.url + "1")
    monkeypatch.setenv("FOREBAY_WORKER_INSTANCE", "http://127.0.0.1:1")
    assert any("name different ones" in line for line in check(capsys)[1])


def test_a_busy_port_is_wrong(capsys, monkeypatch, bus):
    """The port that a replica would listen on is tried."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setenv("FOREBAY_PROXY_PORT", str(port))
        status, lines = check(capsys, "--redis", bus.url)
    assert status == 1
    assert any(line.startswith(f"wrong  proxy 127.0.0.1:{port}: Address already in use") for line in lines)
