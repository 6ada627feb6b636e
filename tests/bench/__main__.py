"""`python -m tests.bench`: measure, print a table, say which aims are met."""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import psutil
import uvloop

from tests.bench import plain, prediction, selecting, streams, usage
from tests.bench.figures import Figure, table
from tests.bench.plan import QUICK, Effort
from tests.bench.stand import Stand, stand

#: Parts that need the whole stand, in the order in which they run: memory idle comes before any load.
ON_STAND = {"memory": usage.memory, "requests": plain.measure, "streams": streams.measure, "bus": usage.bus}

PARTS = (*ON_STAND, "selection", "prediction")


def machine() -> str:
    """One line about where this ran."""
    memory_gib = psutil.virtual_memory().total / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{_processor()}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; load average before: {load}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


async def measure(parts: Sequence[str], effort: Effort) -> list[Figure]:
    """Measure the chosen parts."""
    figures: list[Figure] = []
    chosen = [part for part in ON_STAND if part in parts]
    if chosen:
        with stand() as everything:
            figures += await _on_stand(everything, chosen, effort)
    if "selection" in parts:
        _tell("selection")
        figures += selecting.record_sizes() + await selecting.measure(effort)
    if "prediction" in parts:
        _tell(f"prediction: {effort.trace_runs} × {effort.trace_seconds:.0f} s")
        figures += await prediction.measure(effort)
    return figures


async def _on_stand(everything: Stand, parts: Sequence[str], effort: Effort) -> list[Figure]:
    figures: list[Figure] = []
    for part in parts:
        _tell(part)
        figures += await ON_STAND[part](everything, effort)
    return figures


def _tell(what: str) -> None:
    click.echo(f"measuring {what} …", err=True)


@click.command()
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Measure this part, repeatable.  [default: all]")
@click.option("--repeat", type=click.IntRange(1, 1000), help="Pairs of runs.  [default: 5]")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write every value to FILE.")
@click.option("--quick", is_flag=True, help="Short runs, two repetitions: to see that it works, not to compare.")
def main(only: tuple[str, ...], repeat: int | None, json: Path | None, quick: bool) -> None:
    """Measure what Forebay costs, in ratios to a bare two-hop relay that runs in turns with it.

    Exit status: 0 if every aim is met, 1 if one is not.
    """
    effort = QUICK if quick else Effort()
    if repeat is not None:
        effort = msgspec.structs.replace(effort, repeat=repeat, trace_runs=min(repeat, effort.trace_runs))
    here, command = machine(), " ".join(["python -m tests.bench", *sys.argv[1:]])
    figures = uvloop.run(measure(only or PARTS, effort))
    click.echo(
        f"machine  {here}\ncommand  {command}\nfigures  median [smallest–largest] of {effort.repeat} repetitions\n"
    )
    click.echo(table(figures))
    if json is not None:
        page = {
            "machine": here,
            "command": command,
            "effort": effort,
            "figures": [_plain(figure) for figure in figures],
        }
        json.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")
    missed = [figure for figure in figures if figure.is_met is False]
    click.echo(f"\n{sum(figure.is_met is True for figure in figures)} aims met, {len(missed)} missed")
    sys.exit(1 if missed else 0)


def _plain(figure: Figure) -> dict[str, object]:
    return {**msgspec.structs.asdict(figure), "ratios": figure.ratios, "is_met": figure.is_met}


if __name__ == "__main__":
    main()
