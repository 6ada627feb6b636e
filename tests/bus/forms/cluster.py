"""A Redis Cluster: three masters that share the slots, and a replica of each. Knows nothing of what is stored in it."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from deploy.ports import free_ports
from tests.bus.forms.node import OPEN, Node, Security, until

SLOTS = 16_384
MASTERS = 3

#: A node silent for so long is taken for dead, ms; its replica is promoted soon after.
NODE_TIMEOUT_MS = 1_000

_SETTINGS = f"""\
cluster-enabled yes
cluster-port {{gossip_port}}
cluster-node-timeout {NODE_TIMEOUT_MS}
cluster-replica-validity-factor 0"""


class Cluster:
    """Six nodes; lives as long as its `with`."""

    def __init__(self, binary: Path, security: Security = OPEN) -> None:
        ports = free_ports(4 * MASTERS)
        self._binary = binary
        self._security = security
        self._gossip_ports = ports[2 * MASTERS :]
        self.nodes = [
            Node(binary, port, _SETTINGS.format(gossip_port=gossip_port), security=security)
            for port, gossip_port in zip(ports, self._gossip_ports, strict=False)
        ]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """URL that names the three nodes that began as masters."""
        return self._security.url("redis", self.nodes[:MASTERS])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return f"cluster, {self._binary.name}"

    def holder(self, key: str) -> Node:
        """The master that has a key now."""
        slot, living = self.slot(key), self._living()
        ports = [row[2][1] for row in living.ask("CLUSTER", "SLOTS") if row[0] <= slot <= row[1]]
        return next(node for node in self.nodes if node.port == ports[0])

    def slot(self, key: str) -> int:
        """The slot of a key, as the servers compute it."""
        return int(self._living().ask("CLUSTER", "KEYSLOT", key))

    def start_moving(self, key: str) -> Callable[[], None]:
        """Begin to move a key's slot to another master, as resharding does; the function returned ends it."""
        slot, source = self.slot(key), self.holder(key)
        target = next(node for node in self.nodes if node is not source and node.says("role:master"))
        names = [node.ask("CLUSTER", "MYID").decode() for node in (source, target)]
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])

        def end() -> None:
            keys = [name.decode() for name in source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100)]
            if keys:
                source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for node in (target, source):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[1])

        return end

    def _living(self) -> Node:
        """A node that answers."""
        return next(node for node in self.nodes if node.is_answering)

    def wait(self) -> None:
        """Wait until every node that runs sees every slot served, and every replica has a copy."""
        for node in self.nodes:
            if node.is_answering:
                until(lambda node=node: self._is_settled(node), f"{node.port} sees a whole cluster")

    def _is_settled(self, node: Node) -> bool:
        is_whole = b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
        return is_whole and (node.says("role:master") or node.says("master_link_status:up"))

    def _join(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for index, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            if index:
                node.ask("CLUSTER", "MEET", "127.0.0.1", masters[0].port, self._gossip_ports[0])
            if index < MASTERS:
                first, after = SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS
                node.ask("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        known = b"cluster_known_nodes:%d" % len(self.nodes)
        for node in self.nodes:
            until(lambda node=node: known in node.ask("CLUSTER", "INFO"), f"{node.port} knows all")
        for master, replica in zip(masters, replicas, strict=True):
            name = master.ask("CLUSTER", "MYID").decode()
            until(lambda replica=replica, name=name: replica.ask("CLUSTER", "REPLICATE", name), "it is a replica")
        self.wait()
