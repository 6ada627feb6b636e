"""A master with two replicas, watched by three sentinels. Knows nothing of what is stored in it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from deploy.ports import free_ports
from tests.bus.forms.node import OPEN, Node, Security, until

MASTER = "forebay-master"

#: A master silent for so long is taken for dead, ms.
DOWN_AFTER_MS = 500

_WATCH = f"""\
sentinel monitor {MASTER} 127.0.0.1 {{port}} 2
sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}
sentinel failover-timeout {MASTER} 3000
sentinel parallel-syncs {MASTER} 2"""


class Sentinels:
    """Three servers and three sentinels; lives as long as its `with`."""

    def __init__(self, binary: Path, security: Security = OPEN) -> None:
        self._binary = binary
        self._security = security
        self._stack = ExitStack()
        self.servers: list[Node] = []
        self.sentinels: list[Node] = []

    @property
    def url(self) -> str:
        """URL that names the three sentinels."""
        return self._security.url("redis+sentinel", self.sentinels, f"/{MASTER}")

    def __enter__(self) -> Self:
        security, ports = self._security, free_ports(6)
        with ExitStack() as stack:
            for port in ports[:3]:
                following = f"replicaof 127.0.0.1 {ports[0]}" if port != ports[0] else ""
                self.servers.append(stack.enter_context(Node(self._binary, port, following, security=security)))
            for replica in self.servers[1:]:
                until(lambda replica=replica: replica.says("master_link_status:up"), "a replica follows")
            watch = _WATCH.format(port=ports[0])
            if security.password:
                watch += (
                    f"\nsentinel auth-pass {MASTER} {security.password}\nsentinel sentinel-pass {security.password}"
                )
            for port in ports[3:]:
                sentinel = Node(self._binary, port, watch, is_sentinel=True, security=security)
                self.sentinels.append(stack.enter_context(sentinel))
            self.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return f"sentinels, {self._binary.name}"

    def holder(self, _: str) -> Node:
        """The master, which has every key, as the first sentinel that runs names it."""
        living = next(node for node in self.sentinels if node.is_answering)
        _, port = living.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return next(node for node in self.servers if node.port == int(port))

    def wait(self) -> None:
        """Wait until every sentinel knows the others and two replicas that follow the master."""
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._is_watching(sentinel), f"{sentinel.port} knows the others")

    def _is_watching(self, sentinel: Node) -> bool:
        reply = sentinel.ask("SENTINEL", "MASTER", MASTER)
        known = dict(zip(reply[::2], reply[1::2], strict=True))
        return known[b"num-other-sentinels"] == b"2" and self.holder("").says("connected_slaves:2")
