"""`python -m tests.chaos.soak`: load and faults for minutes, then the question what has grown.

Everything may break in the first eighth; from then on what starts processes anew spares the bus, one replica and the
workers of two instances, so that these and the engines are measured in every run: where one is not, that is a failure.

Memory: of each process that was there after the first eighth and to the end, the median of its last quarter is to be at
most 1.05 times that of its second. File descriptors: under load each request has its own, and connections are kept, so
they are counted while nothing is under way: after the run a process may hold a few more than its like did before it.
Requests under way and reservations: none left. Recovery is no question here: a fault comes before the requests that the
last one held are over.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import click
import msgspec
import psutil
import uvloop

from deploy.engine.batching import EngineModel
from tests.chaos.campaign import Campaign, campaign, chosen, stop_in_order
from tests.chaos.report import Report, text
from tests.chaos.stand import Stand

LOAD: Final = 0.7

#: Half as fast as the default: 70 % of four such engines are some 10 requests a second, which two busy cores carry.
ENGINE: Final = EngineModel(speed=0.5)

#: At 70 % with one engine of four gone requests queue for seconds: limits of that size would try them again and again,
#: and the fleet would not come out of it. Twice the longest of them is still less than the clients' patience.
PATIENCE: Final = 2.5

EVERY_S: Final = 10.0
SAMPLE_S: Final = 2.0

#: Share of the time in which everything may break; a process that was started later is too young to be measured.
WILD: Final = 1 / 8

#: Seats whose processes are not started anew after that, and beginnings of the names that must be measured.
SPARED: Final = ("i1", "i2", "r1")
MEASURED: Final = ("bus", "engines", "replica", "worker-i1", "worker-i2")

#: Growth that is none: a factor.
MEMORY_GROWTH: Final = 1.05

#: File descriptors that are no leak, and how long kept connections may take to end by themselves.
FILES_MORE: Final = 6
REST_S: Final = 100.0


class Growth(msgspec.Struct, frozen=True):
    """One process: its second and its last quarter."""

    name: str
    memory_mb: tuple[float, float]
    """Medians."""

    @property
    def is_flat(self) -> bool:
        """Whether nothing has grown."""
        return self.memory_mb[1] <= MEMORY_GROWTH * self.memory_mb[0]


class Sample(msgspec.Struct, frozen=True):
    """One look at one process."""

    at_s: float
    memory_mb: float


class Gauge:
    """Looks at every process of a stand from time to time."""

    def __init__(self, current: Campaign) -> None:
        self._stand = current.stand
        self.samples: dict[tuple[str, int], list[Sample]] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            now_s = asyncio.get_running_loop().time()
            for name, pid in self._stand.processes().items():
                try:
                    sample = Sample(now_s, psutil.Process(pid).memory_info().rss / 2**20)
                except psutil.NoSuchProcess:
                    continue
                self.samples.setdefault((name, pid), []).append(sample)
            await asyncio.sleep(SAMPLE_S)


def growth(name: str, samples: Sequence[Sample], *, began_s: float, calm_s: float, ended_s: float) -> Growth | None:
    """Compare the quarters of the whole time; None for a process that was not there from `calm_s` to the end."""
    quarter_s = (ended_s - began_s) / 4
    second = [each for each in samples if began_s + quarter_s <= each.at_s < began_s + 2 * quarter_s]
    last = [each for each in samples if began_s + 3 * quarter_s <= each.at_s]
    is_gone = samples[-1].at_s < ended_s - 2 * SAMPLE_S
    if samples[0].at_s > calm_s + SAMPLE_S or is_gone or not second or not last:
        return None  # it is young: its first minute of work is no growth
    return Growth(name, (median(each.memory_mb for each in second), median(each.memory_mb for each in last)))


class Files:
    """File descriptors of every process while nothing is under way: before the load, and after it."""

    def __init__(self) -> None:
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}

    async def look(self, stand: Stand) -> None:
        """Count; the second time wait for the end of connections that are kept."""
        if not self.before:
            self.before = _counted(stand)
            return
        for _ in range(int(REST_S / SAMPLE_S)):
            self.after = _counted(stand)
            if not leaks(self.before, self.after):
                return
            await asyncio.sleep(SAMPLE_S)


def _counted(stand: Stand) -> dict[str, int]:
    return {name: psutil.Process(pid).num_fds() for name, pid in stand.processes().items()}


def leaks(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Processes that hold more files than those of their kind did before, a line each."""
    found = []
    for name, count in after.items():
        most = max((each for like, each in before.items() if _kind(like) == _kind(name)), default=0)
        if count > most + FILES_MORE:
            found.append(f"{name} holds {count} files at rest, its like held {most}")
    return found


def _kind(name: str) -> str:
    return name.split("-")[0]


def misses(grown: Sequence[Growth], files: Files) -> list[str]:
    """What speaks against the run, a line each: what has grown, and what should have been measured and was not."""
    found = [f"{each.name} has grown" for each in grown if not each.is_flat]
    found += leaks(files.before, files.after)
    found += [f"files of {name} were not counted" for name in ("before", "after") if not getattr(files, name)]
    names = [each.name for each in grown]
    return found + [f"{kind} was not measured" for kind in MEASURED if not any(n.startswith(kind) for n in names)]


@click.command()
@click.option("--seconds", type=click.FloatRange(160), default=600.0, show_default=True, help="How long.")
@click.option("--seed", type=click.IntRange(0), help="Of load, faults and victims; drawn and printed if not given.")
@click.option("--load", type=click.FloatRange(0.05, 0.9), default=LOAD, show_default=True, help="Share of capacity.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write the whole report to FILE.")
def main(seconds: float, seed: int | None, load: float, json: Path | None) -> None:
    """Load and faults at random for a long time. Exit status 0: nothing lost, nothing grown, nothing left."""
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as folder:
        found, grown, files = uvloop.run(run(Path(folder), seconds, seed, load))
    click.echo(text(found))
    for each in grown:
        before_mb, after_mb = each.memory_mb
        click.echo(
            f"{'flat ' if each.is_flat else 'GROWN'}   {each.name}: memory {before_mb:.1f} → {after_mb:.1f} MB "
            f"({after_mb / before_mb:.3f})"
        )
    for when, counts in (("before", files.before), ("after", files.after)):
        click.echo(f"files {when}: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    if json is not None:
        page = {"report": found, "growth": grown, "files": {"before": files.before, "after": files.after}}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")
    for line in (missed := misses(grown, files)):
        click.echo(f"MISSED  {line}")
    sys.exit(1 if found.missed or missed else 0)


async def run(folder: Path, seconds: float, seed: int, load: float) -> tuple[Report, list[Growth], Files]:
    """Everything may break in the first eighth; later what starts processes anew spares some of each kind."""
    clock = asyncio.get_running_loop().time
    stop_in_order()

    def say(line: str) -> None:
        click.echo(line, err=True)

    files = Files()
    settings = {"load": load, "engine": ENGINE, "patience": PATIENCE, "resting": files.look}
    async with campaign(folder, seed=seed, say=say, **settings) as current:
        began_s = clock()
        gauge = Gauge(current)
        looking = asyncio.create_task(gauge.run(), name="gauge")
        faults = chosen([], is_short=False)
        await current.at_random(faults, for_s=WILD * seconds, every_s=EVERY_S)
        await current.stand.whole()
        calm_s = clock()
        current.spare(SPARED)
        lasting = [fault for fault in faults if not (fault.is_restart and fault.name.startswith("Redis"))]
        await current.at_random(lasting, for_s=began_s + seconds - calm_s, every_s=EVERY_S)
        ended_s = clock()
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking  # raises what ended it before
        await current.stand.whole()
    times = {"began_s": began_s, "calm_s": calm_s, "ended_s": ended_s}
    grown = [growth(name, samples, **times) for (name, _), samples in gauge.samples.items()]
    found = current.report(" ".join(["python -m tests.chaos.soak", *sys.argv[1:]]))
    found = msgspec.structs.replace(found, recovery_aim_s=None)
    return found, [each for each in grown if each is not None], files


if __name__ == "__main__":
    main()
