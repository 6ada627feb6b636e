"""A Redis that can never be the bus: each command says so in one line and ends."""

import pytest

from deploy.ports import free_ports
from tests.bus.forms.node import Node
from tests.processes.fleet import Part
from tests.servers import valkey_binary

pytestmark = pytest.mark.processes

COMMANDS = {
    "worker": ["worker", "--instance", "i1=http://127.0.0.1:1", "--admin-port", "0"],
    "proxy": ["proxy", "--port", "0", "--admin-port", "0"],
    "check": ["check"],
}


@pytest.fixture(scope="module")
def url():
    """Give a server on which scripts may not ask for the time."""
    binary = valkey_binary() or pytest.skip("Valkey is not installed here")
    with Node(binary, free_ports(1)[0], 'rename-command TIME ""') as node:
        yield f"redis://127.0.0.1:{node.port}"


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_missing_is_one_line_and_the_end(tmp_path, url, name):
    """Exit status 1; the line names what the server refuses and what is needed."""
    part = Part(name, tmp_path, [*COMMANDS[name], "--redis", url])
    assert part.status() == 1
    (line,) = [line for line in part.text.splitlines() if "TIME in scripts" in line]
    assert "SCRIPT LOAD, EVALSHA" in line
    assert "Traceback" not in part.text
    if name != "check":
        assert part.text.splitlines() == [line]
