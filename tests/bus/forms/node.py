"""One server process with settings of its own, for forms of several. Knows nothing of what they are together."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import hiredis
import msgspec

from deploy.tether import tethered

LIMIT_S = 30.0
POLL_S = 0.02

_CLOSED = b"-ERR the connection was closed\r\n"

T = TypeVar("T")


def until(condition: Callable[[], T], what: object) -> T:
    """Return the first true value of something observable; a server that does not answer yet is no answer."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            value = condition()
        except (hiredis.HiredisError, OSError):
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(POLL_S)


class Security(msgspec.Struct, frozen=True):
    """What servers and those who call them need of each other."""

    password: str = ""
    certificates: Path | None = None
    """Folder with ca.pem and own.pem: everything is TLS, and callers show a certificate too."""

    @property
    def settings(self) -> str:
        """Lines of a server's or a sentinel's settings."""
        lines = [f"requirepass {self.password}"] if self.password else []
        if folder := self.certificates:
            lines += [f"tls-ca-cert-file {folder}/ca.pem", f"tls-cert-file {folder}/own.pem"]
            lines += [f"tls-key-file {folder}/own.pem", "tls-replication yes\ntls-cluster yes"]
        return "\n".join(lines)

    def url(self, scheme: str, nodes: "Sequence[Node]", path: str = "") -> str:
        """URL that names nodes, as somebody writes it who may use them."""
        places = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        login = f":{self.password}@" if self.password else ""
        if self.certificates is None:
            return f"{scheme}://{login}{places}{path}"
        files = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "own.pem", "ssl_keyfile": "own.pem"}
        options = "&".join(f"{name}={self.certificates / file}" for name, file in files.items())
        return f"{scheme.replace('redis', 'rediss')}://{login}{places}{path}?{options}"

    def tls(self) -> ssl.SSLContext | None:
        """How to call a server."""
        if self.certificates is None:
            return None
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        context.load_cert_chain(self.certificates / "own.pem")
        return context


OPEN = Security()


class Node:
    """A Redis, Valkey or sentinel on a loopback port that stays the same; lives as long as its `with`."""

    def __init__(
        self, binary: Path, port: int, settings: str = "", *, is_sentinel: bool = False, security: Security = OPEN
    ) -> None:
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-form-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.is_answering = False
        self._security = security
        self._command = [str(binary), str(self.folder / "settings"), *(["--sentinel"] if is_sentinel else [])]
        lines = [f"port 0\ntls-port {port}" if security.certificates else f"port {port}"]
        lines += ["bind 127.0.0.1", f"dir {self.folder}", security.settings]
        if not is_sentinel:  # whose copy is whole at once
            lines += ['save ""', "appendonly no", "repl-diskless-sync-delay 0"]
            lines += [f"masterauth {security.password}"] if security.password else []
        (self.folder / "settings").write_text("\n".join([*lines, settings, ""]))

    def start(self) -> Self:
        """Start the process, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                tethered(self._command, parent_pid=os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.is_answering = True
        until(self._answers, f"port {self.port} answers")
        return self

    def signal(self, number: signal.Signals) -> None:
        """Freeze it (SIGSTOP) or let it go on (SIGCONT)."""
        assert self.process is not None
        self.process.send_signal(number)
        self.is_answering = number is not signal.SIGSTOP

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return self.ask("PING") == b"PONG"

    def ask(self, *words: str | int) -> Any:
        """The bare reply to one command, on a connection of its own; raises what the server refuses."""
        replies = hiredis.Reader()
        with self._connect() as connection:
            for command in ([("AUTH", self._security.password)] if self._security.password else []) + [words]:
                connection.sendall(hiredis.pack_command(command))
                while (reply := replies.gets()) is False:
                    replies.feed(connection.recv(65536) or _CLOSED)
                if isinstance(reply, hiredis.ReplyError):
                    raise reply
        return reply

    def _connect(self) -> socket.socket:
        plain, tls = socket.create_connection(("127.0.0.1", self.port), timeout=5), self._security.tls()
        return tls.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain

    def says(self, line: str) -> bool:
        """Whether a line stands in its INFO."""
        return line.encode() in self.ask("INFO").split(b"\r\n")

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self.is_answering = None, False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
