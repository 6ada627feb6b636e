from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

from bus.client import connect
from bus.errors import BusUnfit
from bus.fitness import NEEDED, demand_fitness, refused
from bus.link import Link
from deploy.ports import free_ports
from tests.bus.forms.node import Node
from tests.bus.worker import POOL
from tests.servers import valkey_binary


@pytest.fixture
def server_with() -> Iterator[Callable[[str], Node]]:
    """Start servers with settings of their own."""
    with ExitStack() as stack:
        binary = valkey_binary() or pytest.skip("Valkey is not installed here")
        yield lambda settings: stack.enter_context(Node(binary, free_ports(1)[0], settings))


@pytest.fixture
async def link_to() -> AsyncIterator[Callable[..., Link]]:
    """Make links as production makes them; they are closed with the test."""
    links: list[Link] = []

    def make(node: Node, login: str = "") -> Link:
        links.append(connect(f"redis://{login}127.0.0.1:{node.port}", timeout_s=2))
        return links[-1]

    yield make
    for link in links:
        await link.aclose()


async def test_a_server_with_everything_refuses_nothing_and_keeps_nothing(bus):
    """The look leaves no key behind, and may be taken at any time."""
    assert [await refused(bus.client, POOL) for _ in range(2)] == ["", ""]
    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize(
    ("settings", "login", "complaint"),
    [
        ('rename-command EVALSHA ""', "", "ERR unknown command 'EVALSHA'"),
        ('rename-command SCRIPT ""', "", "ERR unknown command 'SCRIPT'"),
        ('rename-command TIME ""', "", "TIME in scripts: ERR Unknown .*command called from script"),
        ('rename-command HSET ""', "", "HSET in scripts: ERR Unknown .*command called from script"),
        ("user weak on >pw ~* +@all -time", "weak:pw@", "TIME in scripts: ERR .*(can't run this|no permissions)"),
        ("user weak on >pw ~* +@all -evalsha", "weak:pw@", "NOPERM .*'evalsha'"),
        ("user weak on >pw ~other:* +@all", "weak:pw@", "NOPERM .*key"),
    ],
)
async def test_what_is_missing_is_named_beside_what_is_needed(server_with, link_to, settings, login, complaint):
    """One line, in the server's own words and then in ours."""
    link = link_to(server_with(settings), login)
    with pytest.raises(BusUnfit, match=complaint) as fault:
        await demand_fitness(link, POOL)
    assert NEEDED in str(fault.value)
    assert "\n" not in str(fault.value)


async def test_what_may_pass_is_no_verdict(server_with, link_to):
    """A replica that takes no writes yet, and a server that is away, may serve later."""
    node = server_with("replicaof 127.0.0.1 1")
    assert await refused(link_to(node), POOL) == ""
    node.kill()
    assert await refused(link_to(node), POOL) == ""
