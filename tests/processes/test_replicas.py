import asyncio

import pytest

from tests.processes.fleet import Fleet, fetch, until

pytestmark = pytest.mark.processes


@pytest.fixture
def fleet(start_own_fleet) -> Fleet:
    """Give one instance and no replica."""
    return start_own_fleet(engines=1, replicas=0)


async def test_two_replicas_on_one_port_both_serve(http, fleet):
    """With --reuse-port the system shares the connections of one port out to both replicas."""
    first = fleet.start_replica("--reuse-port")
    second = fleet.start_replica("--reuse-port", "--port", str(first.port))
    await asyncio.to_thread(fleet.wait)
    assert first.port == second.port
    for _ in range(60):  # each on a connection of its own: one replica gets none in 1 of 2^59 runs
        async with http.get(f"{first.url}/v1/models") as answer:
            assert answer.status == 200
    served = [replica.metric("forebay_requests_total", status="200") for replica in fleet.replicas]
    assert sum(served) == 60
    assert all(served)


def test_a_replica_that_comes_before_everything_else_waits_for_it(fleet):
    """A replica without any instance is up and says so in its answers; instances that come later are found."""
    worker = fleet.workers.pop("i1")
    worker.kill()
    replica = fleet.start_replica()
    until(lambda: fetch(f"{replica.admin_url}/ready")[0] == 200, "it is ready")
    fleet.start_worker("i2", worker.engine)
    fleet.wait()
    status, body = fetch(f"{replica.url}/v1/models")
    assert (status, b'"sim"' in body) == (200, True)
