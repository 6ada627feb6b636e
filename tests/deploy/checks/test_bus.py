import pytest

from bus.client import connect
from deploy.checks.bus import check_bus, eviction_findings, version_finding
from deploy.embedded import EmbeddedServer, find_server
from deploy.ports import free_ports
from tests.bus.forms.node import Node


@pytest.fixture
async def server():
    """Give a server of its own, since a test changes its users."""
    async with EmbeddedServer() as one:
        yield one


async def verdicts(url: str) -> list[str]:
    """Return the findings on a bus as lines."""
    return [str(finding) for finding in await check_bus(url)]


async def test_a_good_server_is_right_and_keeps_nothing_of_the_look(server):
    """Version and scripts are right, and the probe has left no key."""
    lines = await verdicts(server.url)
    assert [line[:5] for line in lines] == ["right", "right"]
    client = connect(server.url, timeout_s=2.0)
    assert await client.execute_command("DBSIZE") == 0
    await client.aclose()


async def test_a_dead_server_is_wrong_and_the_line_says_what_to_do():
    """Nobody listens: one line, with the way out."""
    (port,) = free_ports(1)
    (line,) = await verdicts(f"redis://127.0.0.1:{port}/0")
    assert line.startswith("wrong")
    assert "no answer" in line
    assert "--redis" in line


async def test_a_url_that_is_none_is_wrong():
    """The URL itself is looked at before the network is."""
    (line,) = await verdicts("http://127.0.0.1:6379")
    assert line.startswith("wrong")
    assert "redis://" in line


async def test_a_user_who_may_not_run_scripts_is_told_which_rights_are_needed(server):
    """Reserving and publishing are scripts: without them nothing works."""
    client = connect(server.url, timeout_s=2.0)
    await client.execute_command("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-@scripting")
    await client.aclose()
    lines = await verdicts(f"redis://weak:pw@127.0.0.1:{server.port}/0")
    assert any(line.startswith("wrong") and "+evalsha" in line for line in lines), lines
    assert not any("weak:pw" in line for line in lines)


async def test_a_server_without_time_in_scripts_is_wrong():
    """Some managed servers take scripts and forbid them the clock: the line names it and what is needed."""
    with Node(find_server(), free_ports(1)[0], 'rename-command TIME ""') as node:
        lines = await verdicts(f"redis://127.0.0.1:{node.port}")
    (line,) = [line for line in lines if line.startswith("wrong")]
    assert "TIME in scripts: ERR" in line
    assert "SCRIPT LOAD, EVALSHA" in line


async def test_a_wrong_password_is_said_and_not_repeated(server):
    """The line names the remedy and hides the secret."""
    lines = await verdicts(f"redis://somebody:secret@127.0.0.1:{server.port}/0")
    assert lines[0].startswith("wrong")
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("info", "verdict"),
    [
        ({"redis_version": "7.0.15"}, "right"),
        ({"redis_version": "6.2.14"}, "wrong"),
        ({"redis_version": "10.1.0"}, "right"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, "right"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, "wrong"),
        ({}, "wrong"),
    ],
)
def test_versions_are_compared_as_numbers(info, verdict):
    """10 is newer than 7, and Valkey counts for itself."""
    assert version_finding("bus", info).verdict == verdict


@pytest.mark.parametrize(
    ("info", "count"),
    [
        ({"maxmemory_policy": "noeviction", "maxmemory": "100"}, 0),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, 0),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "100"}, 1),
    ],
)
def test_a_server_that_would_evict_is_noted(info, count):
    """Only a bound and a policy together can throw records away."""
    assert len(eviction_findings("bus", info)) == count
