import asyncio
import itertools
import signal
import time

import aiohttp
import msgspec
import pytest

from tests.processes.fleet import Fleet, Replica, until

pytestmark = pytest.mark.processes

PATH = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
TTL_MS = 900
SLACK_S = 3.0
"""Beside two TTLs: a busy machine."""


def chat(max_tokens: int, *, stream: bool = True) -> dict[str, object]:
    """Give a request for so many tokens."""
    messages = [{"role": "user", "content": "Tell me of the sea"}]
    return {"model": "sim", "messages": messages, "max_tokens": max_tokens, "stream": stream}


async def ask(http, url: str, max_tokens: int, **headers: str) -> tuple[int, bytes, str | None]:
    """Status, bytes and instance of a whole answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(f"{url}{PATH}", json=chat(max_tokens), headers=named) as answer:
        return answer.status, await answer.read(), answer.headers.get("x-forebay-instance")


def code_of(body: bytes) -> str:
    """Give the code of an error answer."""
    return msgspec.json.decode(body)["error"]["code"]


async def watched(function, *arguments, **more):
    """Run something that waits, beside the requests."""
    return await asyncio.to_thread(function, *arguments, **more)


def moved(fleet: Fleet) -> float:
    """Give how many waiting requests replicas have taken from a worker."""
    return sum(replica.metric("forebay_moved_total") for replica in fleet.replicas)


@pytest.fixture
def fleet(start_own_fleet) -> Fleet:
    """Give two instances and two replicas that ask both in turn."""
    worker = ["--slots", "8", "--ttl-ms", str(TTL_MS)]
    return start_own_fleet(engine=["--speed", "10"], worker=worker, replica=["--strategy", "round_robin"])


async def test_what_waits_in_a_frozen_worker_is_answered_elsewhere(http, fleet):
    """A worker is stopped (SIGSTOP): its record expires, it answers nobody, and all are answered within two TTLs."""
    frozen = fleet.workers["i1"]
    frozen.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    answers = await asyncio.gather(*(ask(http, fleet.replicas[number % 2].url, 4) for number in range(16)))
    took_s = time.monotonic() - stopped_s
    assert [(status, instance) for status, _, instance in answers] == [(200, "i2")] * 16
    assert all(body.endswith(DONE) for _, body, _ in answers)
    assert took_s < 2 * TTL_MS / 1000 + SLACK_S
    assert await watched(moved, fleet) == 8
    late = [await ask(http, replica.url, 2) for replica in fleet.replicas for _ in range(4)]
    assert {instance for _, _, instance in late} == {"i2"}

    frozen.signal(signal.SIGCONT)
    await watched(fleet.wait)

    async def serves_again() -> None:
        while (await ask(http, fleet.replicas[0].url, 2))[2] != "i1":
            pass

    await asyncio.wait_for(serves_again(), 20)
    await watched(fleet.wait_until_idle)


async def test_if_all_records_expire_together_nothing_moves(http, fleet):
    """All workers stop at once: whoever waits there goes on waiting, and is answered there when they go on."""

    def sees_nothing(replica: Replica) -> bool:
        return all(load["state"] == "unknown" for load in replica.loads().values())

    for worker in fleet.workers.values():
        worker.signal(signal.SIGSTOP)
    asked = [asyncio.create_task(ask(http, fleet.replicas[number % 2].url, 4)) for number in range(8)]
    for replica in fleet.replicas:
        await watched(until, lambda r=replica: sees_nothing(r), f"{replica.name} sees no record")
    reads = [replica.metric("forebay_bus_reads_total") for replica in fleet.replicas]
    for replica, before in zip(fleet.replicas, reads, strict=True):
        await watched(until, lambda r=replica, b=before: r.metric("forebay_bus_reads_total") > b + 2, "it looked again")
    assert await watched(moved, fleet) == 0
    assert not any(task.done() for task in asked)
    for worker in fleet.workers.values():
        worker.signal(signal.SIGCONT)
    answers = [await task for task in asked]
    assert [status for status, _, _ in answers] == [200] * 8
    assert {instance for _, _, instance in answers} == {"i1", "i2"}
    assert await watched(moved, fleet) == 0


class Load:
    """Clients that ask without pause, on connections that they keep, of each replica in turn, whether it is there.

    Only a refused connection sends them to the next one: a request that a replica had, and dropped, is lost.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.urls = {replica: replica.url for replica in fleet.replicas}
        self.answered = 0
        self.refused = 0
        """Connections that a replica did not take: nothing was sent."""
        self.lost: list[str] = []
        self._turns = itertools.count()
        self._is_over = False

    async def run(self, clients: int) -> None:
        """Ask until told to stop."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            await asyncio.gather(*(self._client(session) for _ in range(clients)))

    def stop(self) -> None:
        """Let every client finish what it has asked."""
        self._is_over = True

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self._is_over:
            urls, turn = list(self.urls.values()), next(self._turns)
            for place in range(len(urls)):
                if await self._ask(session, urls[(turn + place) % len(urls)]):
                    break
            else:
                self.lost.append("no replica took it")

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> bool:
        """Ask once; False if the connection was refused."""
        try:
            answer = await session.post(f"{url}{PATH}", json=chat(12))
        except aiohttp.ClientConnectorError:
            self.refused += 1
            return False
        except (aiohttp.ClientConnectionError, ConnectionError) as fault:
            self.lost.append(f"dropped: {fault!r}")
            return True
        try:
            async with answer:
                body = await answer.read()
        except aiohttp.ClientError as fault:
            self.lost.append(f"cut: {fault!r}")
            return True
        if answer.status == 200 and body.endswith(DONE):
            self.answered += 1
        else:
            self.lost.append(f"{answer.status}: {body[-300:]!r}")
        return True


async def test_a_rolling_restart_of_every_part_under_load_loses_no_request(fleet):
    """Each worker and each replica in turn is told to end, ends with status 0, and is started anew."""
    load = Load(fleet)
    running = asyncio.create_task(load.run(clients=8))

    async def answers_more() -> None:
        enough = load.answered + 20
        while load.answered < enough and not running.done():  # noqa: ASYNC110 - polled with a deadline
            await asyncio.sleep(0.02)

    async with asyncio.timeout(120):
        await answers_more()
        for name, worker in list(fleet.workers.items()):
            worker.signal(signal.SIGTERM)
            assert await watched(worker.status) == 0
            fleet.start_worker(name, worker.engine, "--slots", "8", "--ttl-ms", str(TTL_MS))
            await watched(fleet.wait)
            await answers_more()
        for replica in list(fleet.replicas):
            fleet.replicas.remove(replica)
            replica.signal(signal.SIGTERM)
            assert await watched(replica.status) == 0
            del load.urls[replica]  # only now: whoever asks it while it ends is answered, or refused
            fresh = await watched(fleet.start_replica, "--strategy", "round_robin")
            await watched(fleet.wait)
            load.urls[fresh] = fresh.url
            await answers_more()
        load.stop()
        await running
    assert load.lost == []
    assert load.answered >= 100
    assert load.refused > 0, "it was asked while it ended"
    assert not any("Traceback" in part.text for part in fleet.parts)
    await watched(fleet.wait_until_idle)


async def test_what_waits_longer_than_its_client_is_not_started(http, start_own_fleet):
    """One slot, held by a long stream: a 504 in time, and the engine never sees the request."""
    fleet = start_own_fleet(engines=1, replicas=1, worker=["--slots", "1"])
    url, engine = fleet.replicas[0].url, fleet.engines[0]
    async with http.post(f"{url}{PATH}", json=chat(3000)) as running:
        asked_s = time.monotonic()
        status, body, _ = await ask(http, url, 2, x_forebay_timeout_ms="300")
        took_s = time.monotonic() - asked_s
        assert (status, code_of(body)) == (504, "deadline_exceeded")
        assert 0.25 < took_s < 0.3 + SLACK_S
        assert await watched(engine.running) == 1
        running.close()
    assert (await ask(http, url, 2, x_forebay_timeout_ms="20000"))[0] == 200
    assert (await ask(http, url, 2, x_forebay_timeout_ms="soon"))[0] == 400
    await watched(fleet.wait_until_idle)


async def test_high_goes_before_low_and_low_goes_too(http, start_own_fleet):
    """One slot; four low ones wait, then four high ones come: by their order of answers the high were first."""
    fleet = start_own_fleet(engines=1, replicas=1, worker=["--slots", "1"])
    url, [worker] = fleet.replicas[0].url, fleet.workers.values()
    order: list[str] = []

    async def one(priority: str) -> None:
        status, _, _ = await ask(http, url, 4, x_forebay_priority=priority)
        assert status == 200
        order.append(priority)

    running = await http.post(f"{url}{PATH}", json=chat(3000))
    asked = []
    for number, priority in enumerate(["low"] * 4 + ["high"] * 4):
        asked.append(asyncio.create_task(one(priority)))
        await watched(until, lambda n=number: worker.inflight() == n + 2, "it waits in the queue")
    running.close()
    await asyncio.gather(*asked)
    assert order.index("low") <= 1, "the first turn of either class is its own"
    assert order[:6].count("high") == 4
    await watched(fleet.wait_until_idle)


async def test_a_full_fleet_says_when_to_come_again(http, start_own_fleet):
    """Every slot and every place in a queue is taken: 429 with a Retry-After; then there is room again."""
    worker = ["--slots", "1", "--queue-limit", "1"]
    fleet = start_own_fleet(worker=worker, replica=["--strategy", "least_load"])
    replica = fleet.replicas[0]
    held = []
    for number in range(4):
        held.append(asyncio.create_task(ask(http, replica.url, 3000)))
        await watched(
            until, lambda n=number: sum(w.inflight() for w in fleet.workers.values()) == n + 1, "it is accepted"
        )
    for each in fleet.replicas:
        status, body, _ = await ask(http, each.url, 2)
        assert (status, code_of(body)) in {(429, "all_queues_full"), (429, "queue_full")}
        async with http.post(f"{each.url}{PATH}", json=chat(2)) as answer:
            assert answer.status == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    await watched(fleet.wait_until_idle)
    assert (await ask(http, replica.url, 2))[0] == 200
    await watched(fleet.wait_until_idle)
