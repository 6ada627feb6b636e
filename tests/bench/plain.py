"""Plain requests: what the way adds in time, what it costs in CPU, how many go through."""

from collections import defaultdict

from tests.bench.figures import Aim, Figure
from tests.bench.load import Load, load_on, request_bytes
from tests.bench.plan import Effort
from tests.bench.stand import Relays, Stand

CONCURRENCIES = (1, 16, 64)

#: Concurrency at which CPU a request is compared; the others stand beside it.
CPU_AT = 16

PART = "plain requests"


async def one_run(load: Load, relays: Relays | None, concurrency: int, seconds: float) -> dict[str, float]:
    """One run on one target: p50 and p99 in ms, requests/s, CPU seconds of the relays per 1 000 requests."""
    before, cpu_before_s = load.answered, relays.cpu_s() if relays else 0.0
    took_s = await load.run(concurrency, request_bytes(is_stream=False), seconds)
    cpu_s = (relays.cpu_s() if relays else 0.0) - cpu_before_s
    answered = load.answered - before
    ordered = sorted(load.latencies_s)
    return {
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
        "rate": answered / took_s,
        "cpu": cpu_s / answered * 1000,
    }


async def measure(stand: Stand, effort: Effort) -> list[Figure]:
    """Runs in turns: engine, yardstick, Forebay, at each concurrency, over and over."""
    ours: dict[tuple[str, int], list[float]] = defaultdict(list)
    bare: dict[tuple[str, int], list[float]] = defaultdict(list)
    rounds = [(stand.yardstick, bare), (stand.forebay, ours)]
    with (
        load_on(stand.engine_url) as direct,
        load_on(stand.yardstick.url) as first,
        load_on(stand.forebay.url) as second,
    ):
        loads = (first, second)
        for load in (direct, *loads):
            await load.run(max(CONCURRENCIES), request_bytes(is_stream=False), 0.5)
        for _ in range(effort.repeat):
            for concurrency in CONCURRENCIES:
                alone = await one_run(direct, None, concurrency, effort.seconds / 3)
                for load, (relays, kept) in zip(loads, rounds, strict=True):
                    run = await one_run(load, relays, concurrency, effort.seconds)
                    for name in ("p50", "p99"):
                        kept[name, concurrency].append(run[name] - alone[name])
                    for name in ("rate", "cpu"):
                        kept[name, concurrency].append(run[name])
    return [
        _figure(name, c, ours[name, c], bare[name, c]) for name in ("p50", "p99", "rate", "cpu") for c in CONCURRENCIES
    ]


_NAMES = {
    "p50": ("added latency p50", "ms"),
    "p99": ("added latency p99", "ms"),
    "rate": ("throughput", "requests/s"),
    "cpu": ("CPU a request", "s/1000"),
}


def _figure(name: str, concurrency: int, ours: list[float], bare: list[float]) -> Figure:
    label, unit = _NAMES[name]
    has_aim = name == "p50" or (name == "cpu" and concurrency == CPU_AT)
    return Figure(
        part=PART,
        name=f"{label}, {concurrency} at once",
        unit=unit,
        ours=ours,
        yardstick=bare,
        aim=Aim(1.3) if has_aim else None,
    )
