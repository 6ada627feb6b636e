import asyncio

import pytest

from tests.processes.fleet import INSTANTANEOUS, Fleet, Replica, until

pytestmark = pytest.mark.processes

PATH = "/v1/chat/completions"

SHARED = range(8, 23)
"""How many of thirty may go to one of two equal instances."""


@pytest.fixture(scope="module", params=["least_load", "expected_wait", "predicted_ttft"])
def fleet(start_fleet, request) -> Fleet:
    """Give two instances that read a long prompt for seconds, and two replicas."""
    return start_fleet(replica=["--strategy", request.param])


def chat(tokens: int, max_tokens: int) -> dict[str, object]:
    """Give a stream whose prompt has about so many tokens."""
    messages = [{"role": "user", "content": "hay " * tokens}]
    return {"model": "sim", "messages": messages, "max_tokens": max_tokens, "stream": True}


class Running:
    """A request under way: its instance is known when its first event is there."""

    def __init__(self, http, replica: Replica, body: object) -> None:
        self.task = asyncio.create_task(self.run(http, replica, body))
        self.instance: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self, http, replica: Replica, body: object) -> bytes:
        """Ask and read to the end."""
        async with http.post(f"{replica.url}{PATH}", json=body) as answer:
            self.instance.set_result(answer.headers["x-forebay-instance"])
            return await answer.read()


def hidden_backlog(replica: Replica) -> str | None:
    """Give the instance whose work shows in no instantaneous depth, only in its predicted backlog."""
    for name, load in replica.loads().items():
        values = {signal: load["signals"][signal]["value"] for signal in load["signals"]}
        if all(values[depth] == 0 for depth in INSTANTANEOUS) and (values["predicted_total_backlog_ms"] or 0) > 0:
            return name
    return None


async def thirty(http, fleet: Fleet, *, is_burst: bool) -> int:
    """Send thirty overlapping requests through both replicas and give how many of them i1 answered."""
    requests = []
    for number in range(30):
        requests.append(Running(http, fleet.replicas[number % 2], chat(50, 60)))
        if not is_burst:
            await requests[-1].instance
    answers = await asyncio.gather(*(request.task for request in requests))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    return [request.instance.result() for request in requests].count("i1")


async def test_overlapping_requests_are_shared_and_leave_nothing_behind(http, fleet):
    """Thirty requests, each sent when the one before has begun, are shared out and leave every count at 0."""
    assert await thirty(http, fleet, is_burst=False) in SHARED
    await asyncio.to_thread(fleet.wait_until_idle)


async def test_a_burst_through_two_replicas_is_shared_and_leaves_nothing_behind(http, fleet):
    """Thirty requests in one instant through two replicas that cannot see each other's are shared out all the same."""
    assert await thirty(http, fleet, is_burst=True) in SHARED
    await asyncio.to_thread(fleet.wait_until_idle)


async def test_the_first_burst_of_fresh_replicas_is_shared_too(http, start_own_fleet):
    """Nothing has to be warmed up: connections and scripts are there before the first request is."""
    fresh = await asyncio.to_thread(start_own_fleet)
    assert await thirty(http, fresh, is_burst=True) in SHARED


async def test_the_next_request_avoids_a_backlog_that_only_the_prediction_shows(http, fleet):
    """While one engine reads a long prompt all depths are 0; the next requests of both replicas go to the other one."""
    first, second = fleet.replicas
    long = Running(http, first, chat(30_000, 2))
    seen = await asyncio.to_thread(lambda: [until(lambda r=r: hidden_backlog(r), "a backlog") for r in (first, second)])
    assert seen[0] == seen[1]
    others = []
    for replica in (second, first, second):
        others.append(Running(http, replica, chat(4, 100)))
        assert await others[-1].instance != seen[0]
    assert not long.instance.done(), "the prompt was read before the choices were made"
    assert await long.instance == seen[0]
    answers = await asyncio.gather(long.task, *(other.task for other in others))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    await asyncio.to_thread(fleet.wait_until_idle)
