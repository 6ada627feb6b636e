"""The cost of one selection in this process: the reading, the choice, the reservation, on a real server.

Each timed choice is the worst case: every record has been published anew since the one before, so that all of them
are decoded. The pure part, scoring and ranking without any bus, is told beside it. Here the yardstick is two bare
round trips: what reading and reserving cost at the least.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from time import monotonic, perf_counter, process_time

import msgspec
import redis.asyncio as redis_asyncio

from bus.client import connect
from bus.hop.process import GC_THRESHOLDS
from bus.link import Link
from bus.publisher import Publisher
from bus.reader import Reader
from bus.record import SIGNALS, PressureRecord, encode_record
from bus.registration import Registration
from bus.reservations import Reservations
from proxy.candidates import Candidate, RequestWork
from proxy.config import ProxyConfig
from proxy.facts import read_facts
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from proxy.strategies.base import select
from tests.bench.figures import Aim, Figure
from tests.bench.plan import Effort
from tests.bench.stand import bus_server
from tests.bench.yardstick import READ

SIZES = (10, 100, 1000)

FACTS = read_facts(
    "/v1/chat/completions",
    msgspec.json.encode(
        {"model": "bench", "max_tokens": 256, "stream": True, "messages": [{"content": "water " * 600}]}
    ),
)

PART = "one selection"

#: Publishers that publish at the same time.
_ABREAST = 32


#: Largest value of each signal of a loaded instance; a signal that is not named here is a count of up to 4 000.
_LARGEST_COUNTS = {
    "prepare_queue_depth": 3,
    "active_prepare": 3,
    "ready_queue_depth": 20,
    "active_ready": 3,
    "inflight": 64,
    "pending_prefill_count": 8,
    "active_decode_count": 32,
    "predicted_decode_backlog_ms": 20_000,
    "predicted_total_backlog_ms": 20_000,
    "queued_tokens": 60_000,
    "engine_running": 32,
    "engine_waiting": 8,
    "kv_capacity_tokens": 400_000,
    "prefill_tokens_per_s": 12_000,
    "mean_output_tokens": 500,
}
_LARGEST_AMOUNTS = {
    "kv_usage": 1.0,
    "prefill_fixed_ms": 20.0,
    "decode_step_ms": 40.0,
    "decode_slope_ms": 1.0,
    "qps_1m": 20.0,
}


def typical_record(epoch: int, sequence: int, rng: random.Random) -> PressureRecord:
    """A record of a loaded instance, all signals known, as a worker would publish it."""
    values = {
        name: rng.uniform(0, _LARGEST_AMOUNTS[name])
        if name in _LARGEST_AMOUNTS
        else rng.randint(1, _LARGEST_COUNTS.get(name, 4000))
        for name in SIGNALS
    }
    return PressureRecord(epoch=epoch, sequence=sequence, **values)


class Fleet:
    """Some published instances of one pool, without workers."""

    def __init__(self, client: Link, size: int, rng: random.Random) -> None:
        self.pool = f"bench-{size}"
        registration = Registration(
            worker_url="http://127.0.0.1:1", engine_url="http://127.0.0.1:2", models=("bench",), slots=16, ttl_ms=60_000
        )
        self.publishers = [
            Publisher(
                client,
                pool=self.pool,
                instance=f"engine-{number}",
                make_record=lambda epoch, sequence: typical_record(epoch, sequence, rng),
                registration=lambda: registration,
                on_superseded=lambda: None,
                registration_ttl_s=600,
            )
            for number in range(size)
        ]

    async def publish(self) -> None:
        """Publish every record anew."""
        for start in range(0, len(self.publishers), _ABREAST):
            await asyncio.gather(*(each.publish_now() for each in self.publishers[start : start + _ABREAST]))


@asynccontextmanager
async def selection_of(client: Link, pool: str, strategy: str) -> AsyncIterator[Selection]:
    """A replica's selection on one pool, with time limits that nothing here reaches."""
    reader = Reader(client, pool, budget_s=5)
    yield Selection(
        [reader],
        [Reservations(client, pool)],
        STRATEGIES[strategy](ProxyConfig()),
        rotation=Rotation.of_replica("bench"),
    )
    await reader.close()


async def time_choices(
    library: redis_asyncio.Redis, fleet: Fleet, selection: Selection, choices: int
) -> tuple[float, float, float]:
    """Median seconds of one choice with its round trips, of its CPU here, and of two bare round trips beside it.

    The bare ones run the yardstick's reading script, after the same publishing, so that a busy machine slows both.
    """
    script = library.register_script(READ)
    whole_s, cpu_s, bare_s = [], [], []
    for number in range(choices + 1):
        await fleet.publish()
        started_s = perf_counter()
        for _ in range(2):
            await script(keys=["yardstick:{bench}:pressure"])
        bare_s.append(perf_counter() - started_s)
        started_s, cpu_started_s = perf_counter(), process_time()
        chosen = await selection.choose(f"request-{number}", FACTS)
        whole_s.append(perf_counter() - started_s)
        cpu_s.append(process_time() - cpu_started_s)
        selection.release(chosen)
        selection.give_back(chosen)
    return median(whole_s[1:]), median(cpu_s[1:]), median(bare_s[1:])  # the first reads the registrations


def time_scoring(selection: Selection, strategy: str, work: RequestWork, choices: int) -> float:
    """Median seconds of scoring and ranking alone, on the view that stands."""
    (reader,) = selection.readers.values()
    found = reader.last_view.live(monotonic())
    candidates = [Candidate(pressure.instance, pressure, 0) for pressure in found]
    scorer, rotation, rng = STRATEGIES[strategy](ProxyConfig()), Rotation.of_replica("bench"), random.Random(1)
    took_s = []
    for _ in range(choices):
        started_s = perf_counter()
        select(scorer, candidates, work, rng, rotation)
        took_s.append(perf_counter() - started_s)
    return median(took_s)


async def measure(effort: Effort, sizes: tuple[int, ...] = SIZES) -> list[Figure]:
    """Choices in pools of several sizes, each beside two bare round trips; the collector set as in our processes."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        return await _measure_sizes(effort, sizes)
    finally:
        gc.set_threshold(*thresholds)


async def _measure_sizes(effort: Effort, sizes: tuple[int, ...]) -> list[Figure]:
    rng = random.Random(7)
    figures: list[Figure] = []
    async with bus_server() as server:
        link, library = connect(server.url, timeout_s=5), redis_asyncio.Redis.from_url(server.url)
        try:
            for size in sizes:
                fleet = Fleet(link, size, rng)
                await fleet.publish()
                figures += await _measure_size(link, library, fleet, effort)
        finally:
            await link.aclose()
            await library.aclose()
    return figures


async def _measure_size(link: Link, library: redis_asyncio.Redis, fleet: Fleet, effort: Effort) -> list[Figure]:
    size, strategy = len(fleet.publishers), ProxyConfig().strategy
    whole: list[float] = []
    cpu: list[float] = []
    bare: list[float] = []
    scoring: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    async with selection_of(link, fleet.pool, strategy) as selection:
        for _ in range(effort.repeat):
            choices = max(5, min(effort.choices, 4000 // size))
            for kept, seconds in zip(
                (whole, cpu, bare), await time_choices(library, fleet, selection, choices), strict=True
            ):
                kept.append(1e6 * seconds)
            work = selection.decisions[-1].work
            for name, kept in scoring.items():
                kept.append(1e6 * time_scoring(selection, name, work, choices))
    aim = Aim(1000, of="value") if size == 100 else None
    label = f"{strategy}, {size} instances"
    return [
        Figure(part=PART, name=label, unit="µs", ours=whole, yardstick=bare, aim=aim),
        Figure(part=PART, name="  its CPU in this process", unit="µs", ours=cpu),
        *(
            Figure(part=PART, name=f"  scoring and ranking alone, {name}", unit="µs", ours=kept)
            for name, kept in scoring.items()
        ),
    ]


def record_sizes(records: int = 200) -> list[Figure]:
    """Bytes of typical records, every signal known."""
    rng = random.Random(3)
    sizes = [len(encode_record(typical_record(1_764_000_000_000_000, 4000 + n, rng))) for n in range(records)]
    return [Figure(part="bus", name="record, all signals known", unit="bytes", ours=sizes, aim=Aim(128, of="value"))]
