"""One server by itself: over TLS with certificates on both sides, or by a socket of this machine."""

import shutil
import tempfile
from pathlib import Path
from typing import Self

from deploy.ports import free_ports
from tests.bus.forms.node import Node, Security


class Single:
    """One server; lives as long as its `with`. `by_socket`: clients are told of its unix socket only."""

    def __init__(self, binary: Path, security: Security, *, by_socket: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-socket-"))
        settings = f"unixsocket {self._folder}/redis.sock" if by_socket else ""
        self.node = Node(binary, free_ports(1)[0], settings, security=security)
        login = f":{security.password}@" if security.password else ""
        self.url = f"unix://{login}{self._folder}/redis.sock?db=3" if by_socket else security.url("redis", [self.node])

    def __enter__(self) -> Self:
        self.node.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.node.__exit__(*details)
        shutil.rmtree(self._folder, ignore_errors=True)
