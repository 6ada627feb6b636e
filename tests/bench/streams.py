"""Streams: CPU a chunk where every chunk is a read of its own, and chunks a second as fast as they go."""

import asyncio

from tests.bench.figures import Aim, Figure
from tests.bench.load import Load, load_on, request_bytes
from tests.bench.plan import Effort
from tests.bench.stand import Relays, Stand

STREAMS = 64

#: One chunk a stream every 20 ms, the streams' starts spread over as much: 3 200 chunks/s, none behind another in a
#: socket, so that each is a read and a write of its own in every hop, as tokens of a real engine are.
PACE_MS = 20.0

FLOODS = 16

PART = "streams"


async def paced(load: Load, relays: Relays, seconds: float) -> dict[str, float]:
    """Measure while all streams run, from their steady state: CPU µs a chunk, and reads a chunk at the client."""
    chunks = int((seconds + 1.5) * 1000 / PACE_MS)
    await load.connect(STREAMS)
    load.left, load.deadline_s = STREAMS, float("inf")
    load.start(STREAMS, request_bytes(is_stream=True, chunks=chunks, pace_ms=PACE_MS), spread_s=0.5)
    await asyncio.sleep(1.0)
    chunks_before, reads_before, cpu_before_s = load.chunks, load.reads, relays.cpu_s()
    await asyncio.sleep(seconds)
    cpu_s = relays.cpu_s() - cpu_before_s
    seen, reads = load.chunks - chunks_before, load.reads - reads_before
    await load.over()
    return {"cpu": cpu_s / seen * 1e6, "reads": reads / seen, "rate": seen / seconds}


async def flood(load: Load, chunks: int) -> dict[str, float]:
    """As fast as it goes: the engine writes a chunk a stream and turn of its loop; what queues up is merged."""
    chunks_before, reads_before = load.chunks, load.reads
    took_s = await load.run_each_once(FLOODS, request_bytes(is_stream=True, chunks=chunks))
    seen = load.chunks - chunks_before
    return {"rate": seen / took_s, "reads": (load.reads - reads_before) / seen}


async def measure(stand: Stand, effort: Effort) -> list[Figure]:
    """Runs in turns: yardstick, Forebay, over and over."""
    cpu: tuple[list[float], list[float]] = ([], [])
    reads: tuple[list[float], list[float]] = ([], [])
    rate: tuple[list[float], list[float]] = ([], [])
    merged: tuple[list[float], list[float]] = ([], [])
    targets: tuple[Relays, Relays] = (stand.forebay, stand.yardstick)
    with load_on(targets[0].url) as first, load_on(targets[1].url) as second:
        loads = (first, second)
        for load in loads:
            await flood(load, 100)
        for _ in range(effort.repeat):
            for which in (1, 0):
                run = await paced(loads[which], targets[which], effort.stream_seconds)
                cpu[which].append(run["cpu"])
                reads[which].append(run["reads"])
            for which in (1, 0):
                run = await flood(loads[which], effort.flood_chunks)
                rate[which].append(run["rate"])
                merged[which].append(run["reads"])
    rows = (
        (f"CPU a chunk, both hops, {STREAMS} × {1000 / PACE_MS:.0f}/s", "µs", cpu, Aim(0.65)),
        ("  reads a chunk at the client", "", reads, None),
        (f"chunks a second, {FLOODS} streams at full speed", "1/s", rate, None),
        ("  reads a chunk at the client", "", merged, None),
    )
    return [
        Figure(part=PART, name=name, unit=unit, ours=values[0], yardstick=values[1], aim=aim)
        for name, unit, values, aim in rows
    ]
