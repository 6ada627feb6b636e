"""What comes to a fleet: rows of a trace, their times stretched to a load of the fleet's capacity. Pure."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from deploy.engine.batching import EngineModel
from deploy.replay.traces import read_trace
from tests.routing.engine import JumpingEngine

_FOLDER: Final = Path(__file__).parent.parent / "data" / "traces"

TRACES: Final = {"conv": "AzureLLMInferenceTrace_conv.csv", "code": "AzureLLMInferenceTrace_code.csv"}

#: Speeds of the engines of a fleet, by its name.
FLEETS: Final = {
    "equal": (1.0,) * 8,
    "unequal": (1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25),
}


#: Requests over which the load is held: the hour of the trace swings between 0.6 and 1.5 of its mean, so that "75 %
#: load" would be an overload for a third of it, where every policy only drains one queue. Bursts within stay.
STEADY_REQUESTS: Final = 1000


class Arrival(msgspec.Struct, frozen=True):
    """One request: when it comes (seconds), its prompt, what it will really produce (tokens), and by which replica."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    replica: int


def fleet_speeds(name: str, instances: int = 8) -> tuple[float, ...]:
    """Speeds of a fleet of that many instances, the pattern of eight repeated.

    >>> fleet_speeds("unequal", 9)[-2:]
    (0.25, 1.0)
    """
    pattern = FLEETS[name]
    return tuple(pattern[index % len(pattern)] for index in range(instances))


@cache
def rows(trace: str) -> tuple[tuple[float, int, int], ...]:
    """All rows of a trace: seconds from its begin, prompt tokens, output tokens."""
    found = list(read_trace(_FOLDER / TRACES[trace]))
    return tuple((row.at_s - found[0].at_s, row.prompt_tokens, row.output_tokens) for row in found)


def window(trace: str, *, seed: int, limit: int) -> list[tuple[float, int, int]]:
    """The rows of one seed: the trace from `seed * limit` on, and again from its begin where it ends."""
    whole = rows(trace)
    limit = limit or len(whole)
    span_s = whole[-1][0] * (1 + 1 / len(whole))
    found = []
    for place in range(seed * limit, (seed + 1) * limit):
        round_, row = divmod(place, len(whole))
        at_s, prompt, output = whole[row]
        found.append((round_ * span_s + at_s, prompt, output))
    return [(at_s - found[0][0], prompt, output) for at_s, prompt, output in found]


def capacity_per_s(work: list[tuple[float, int, int]], model: EngineModel) -> float:
    """Requests a second that an engine serves when all of them wait at its door."""
    engine = JumpingEngine(model)
    for key, (_, prompt, output) in enumerate(work):
        engine.submit(key, prompt, output, 0.0)
    now = 0.0
    while engine.begin(now):
        now = engine.ends_s
        engine.end()
    return len(work) / now


def arrivals(
    trace: str,
    *,
    seed: int,
    limit: int,
    load: float,
    speeds: tuple[float, ...],
    replicas: int,
    steady: int = STEADY_REQUESTS,
) -> list[Arrival]:
    """What comes to the fleet, the same for every policy: sizes in an order of the seed's own, gaps a little uneven.

    `load` is the share of the fleet's capacity: that of each speed at saturation, summed over the instances.
    """
    work = window(trace, seed=seed, limit=limit)
    rng = Random(f"{trace} {seed}")
    sizes = [(prompt, output) for _, prompt, output in work]
    rng.shuffle(sizes)
    gaps = [(after[0] - before[0]) * rng.uniform(0.5, 1.5) for before, after in pairwise(work)]
    if steady:
        gaps = [gap for block in _blocks(gaps, steady) for gap in _of_mean_one(block)]
    per_s = sum(speeds.count(speed) * capacity_per_s(work, EngineModel(speed=speed)) for speed in sorted(set(speeds)))
    stretch = (len(work) - 1) / (load * per_s) / sum(gaps)
    found, at_s = [], 0.0
    for (prompt, output), gap in zip(sizes, [*gaps, 0.0], strict=True):
        found.append(Arrival(at_s, prompt, output, int(rng.random() * replicas)))
        at_s += gap * stretch
    return found


def _blocks(gaps: list[float], requests: int) -> list[list[float]]:
    """Gaps in blocks of about that many requests, all alike in size."""
    count = max(1, round(len(gaps) / requests))
    return [gaps[len(gaps) * block // count : len(gaps) * (block + 1) // count] for block in range(count)]


def _of_mean_one(gaps: list[float]) -> list[float]:
    """The same gaps stretched to a mean of 1."""
    mean = sum(gaps) / len(gaps)
    return [gap / mean for gap in gaps]
