"""A burst: 64 equal requests at once, over eight replicas, onto eight equal instances. Eight each would be ideal."""

import asyncio
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from bus.keys import reserved_key
from bus.reader import Reader
from bus.reservations import Reservations
from proxy.config import ProxyConfig
from proxy.facts import read_facts
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from tests.bus.worker import POOL, Worker, registration
from tests.processes.fleet import Fleet, fetch, until

REPLICAS, INSTANCES, REQUESTS = 8, 8, 64
MODEL = "sim"

#: Each of the requests.
BODY = msgspec.json.encode({"model": MODEL, "prompt": "hay " * 1500, "max_tokens": 4})

#: An idle instance that has learned what its engine does.
IDLE = {
    **dict.fromkeys(("prepare_queue_depth", "active_prepare", "ready_queue_depth", "active_ready", "inflight"), 0),
    **dict.fromkeys(("pending_prefill_count", "active_decode_count", "queued_tokens", "engine_running"), 0),
    **dict.fromkeys(("predicted_wait_ms", "predicted_total_backlog_ms", "prefill_free_in_ms", "engine_waiting"), 0),
    "kv_usage": 0.0,
    "kv_capacity_tokens": 200_000,
    "prefill_tokens_per_s": 8000.0,
    "prefill_fixed_ms": 8.0,
    "decode_step_ms": 8.0,
    "decode_slope_ms": 0.25,
    "mean_output_tokens": 128.0,
}


class HeldReader(Reader):
    """A reader that gives its view when every request of the burst has one."""

    def __init__(self, barrier: asyncio.Barrier, *args, **options) -> None:
        super().__init__(*args, **options)
        self._barrier = barrier

    async def view(self, scope=None):
        """Read, then wait for the others."""
        view = await super().view(scope)
        await self._barrier.wait()
        return view


async def publish_equal_instances(bus, *, is_identical: bool) -> None:
    """Announce equal instances: idle and equal to the last digit, or to parts of a thousand, as what is measured is."""
    for number in range(INSTANCES):
        worker = Worker(bus.connect(), f"i{number}", ttl_ms=60_000)
        worker.registration = registration(f"i{number}", models=(MODEL,), ttl_ms=60_000)
        worker.signals = dict(IDLE)
        if not is_identical:
            worker.signals |= {"prefill_tokens_per_s": 8000.0 - number, "predicted_total_backlog_ms": 60_000 + number}
        await worker.publish()


async def burst(bus, strategy: str, *, reserves: bool = True, voided: int = 0) -> list[int]:
    """Choose for all requests by views that none of them has changed; how many each instance got, in ascending order.

    A run in which the machine needed longer than a view is good for is void, and made again.
    """
    barrier = asyncio.Barrier(REQUESTS)
    facts = read_facts("/v1/completions", BODY)
    selections, clients = [], [bus.connect() for _ in range(REPLICAS)]
    for number, client in enumerate(clients):
        selections.append(
            Selection(
                [HeldReader(barrier, client, POOL, budget_s=5)],
                [Reservations(client, POOL)] if reserves else [],
                STRATEGIES[strategy](ProxyConfig()),
                rotation=Rotation.of_replica(f"replica-{number}"),
            )
        )
    choices = (selection.choose("burst", facts) for selection in selections for _ in range(REQUESTS // REPLICAS))
    await asyncio.gather(
        *(client.execute_command("PING") for client in clients for _ in range(REQUESTS // REPLICAS))
    )  # connections
    chosen = await asyncio.gather(*choices)
    if not all(bool(each.decision.choice.reserved) == reserves for each in chosen):
        assert voided < 20, "the machine is too slow: views are older than 250 ms when they are used"
        await empty_transit(bus)
        return await burst(bus, strategy, reserves=reserves, voided=voided + 1)
    counts = Counter(each.instance for each in chosen)
    return sorted(counts[f"i{number}"] for number in range(INSTANCES))


async def empty_transit(bus) -> None:
    """Forget what is reserved."""
    await bus.client.delete(*(reserved_key(POOL, f"i{number}") for number in range(INSTANCES)))


@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "as measured"])
@pytest.mark.parametrize("strategy", ["predicted_ttft", "expected_wait", "least_load"])
async def test_a_burst_is_spread_evenly(real_bus, strategy, is_identical):
    """Seven to nine requests an instance, though every choice is made by a view in which all are idle."""
    await publish_equal_instances(real_bus, is_identical=is_identical)

    counts = await burst(real_bus, strategy)

    assert sum(counts) == REQUESTS
    assert 7 <= counts[0] <= counts[-1] <= 9


@pytest.mark.parametrize("strategy", ["predicted_ttft", "least_load"])
async def test_a_burst_without_reservations_is_a_herd(real_bus, strategy):
    """Where nothing is reserved, all replicas run to what looks best by parts of a thousand, in 20 runs of 20."""
    for _ in range(20):
        await real_bus.empty()
        await publish_equal_instances(real_bus, is_identical=False)

        counts = await burst(real_bus, strategy, reserves=False)

        assert counts[0] < 7
        assert counts[-1] > 9


def in_one_worker(fleet: Fleet, *words: str) -> None:
    """Start the queue workers of all engines in one process."""
    engines = fleet.start_engines(*words, count=INSTANCES)
    named = [f"i{number}={engine.url}" for number, engine in enumerate(engines)]
    options = [word for each in named[1:] for word in ("--instance", each)]
    fleet.start_worker("i0", engines[0], *options)


@pytest.mark.processes
def test_a_burst_over_eight_replicas_is_spread_evenly(tmp_path):
    """Six to ten requests an instance, through real replicas, workers and engines, all of them in flight together."""
    with Fleet(tmp_path) as fleet:
        in_one_worker(fleet, "--prefill-ms-per-token", "1", "--max-num-seqs", "64")
        for _ in range(REPLICAS):  # two cores start twenty processes here: the machine is slow, not the bus
            fleet.start_replica("--strategy", "predicted_ttft", "--read-budget-ms", "500")
        fleet.wait()
        for replica in fleet.replicas:
            until(lambda replica=replica: len(replica.loads()) == INSTANCES, f"{replica.name} sees every instance")
        for _ in range(5):
            counts = sorted(Counter(send_burst(fleet)).values())
            if chosen_by_the_bus(fleet) == REQUESTS:
                break
            fleet.wait_until_idle()  # void: a view was older than 250 ms when it was used

    assert sum(counts) == REQUESTS
    assert len(counts) == INSTANCES
    assert 6 <= counts[0] <= counts[-1] <= 10


def chosen_by_the_bus(fleet: Fleet) -> int:
    """How many of the requests of the last burst were chosen for, and reserved, on the bus."""
    found = 0
    for replica in fleet.replicas:
        page = msgspec.json.decode(fetch(f"{replica.admin_url}/debug/selections")[1])
        latest = sorted(page["selections"], key=lambda each: each["at"])[-REQUESTS // REPLICAS :]
        found += sum(each["decided_by"] == "bus" for each in latest)
    return found


def send_burst(fleet: Fleet) -> list[str]:
    """Send all requests at once, eight to each replica; the instances that answered."""

    def send(number: int) -> str:
        url = f"{fleet.replicas[number % REPLICAS].url}/v1/completions"
        request = urllib.request.Request(url, data=BODY, headers={"content-type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            answer.read()
            return answer.headers["x-forebay-instance"]

    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(send, range(REQUESTS)))
