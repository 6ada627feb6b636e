"""`python -m tests.routing.processes`: measure, print a table, say which promises are kept."""

import sys
from pathlib import Path

import click
import msgspec
import uvloop

from tests.bench.__main__ import machine
from tests.routing.processes.measuring import LAG_BOUND_S, SLIP_BOUND, Setting, measure
from tests.routing.processes.picture import draw
from tests.routing.processes.plan import LOADS, Cell, preset
from tests.routing.processes.report import Result, result, table

_PRESETS = ("smoke", "quick", "bounds", "full")


class _Page(msgspec.Struct, kw_only=True):
    """The JSON."""

    machine: str
    command: str
    setting: Setting
    results: list[Result]


def _chosen(cell: Cell, names: tuple[str, ...], replicas: tuple[int, ...]) -> Cell:
    """The cell with some of its policies."""
    kept = tuple(
        policy
        for policy in cell.policies
        if (not names or policy.name in names)
        and (not replicas or policy.replicas in replicas or policy.label.count("×") == 0)
    )
    return msgspec.structs.replace(cell, policies=kept)


def _cells(
    name: str,
    fleets: tuple[str, ...],
    loads: tuple[int, ...],
    traces: tuple[str, ...],
    names: tuple[str, ...],
    replicas: tuple[int, ...],
    requests: int | None,
) -> list[Cell]:
    found = []
    for cell in preset(name):
        if (fleets and cell.fleet not in fleets) or (loads and cell.load not in loads):
            continue
        if traces and cell.trace not in traces:
            continue
        blocks = cell.blocks if requests is None else -(-requests // cell.block_requests)
        found.append(_chosen(msgspec.structs.replace(cell, blocks=blocks), names, replicas))
    return [cell for cell in found if cell.policies]


@click.command()
@click.option("--cells", type=click.Choice(_PRESETS), default="quick", show_default=True, help="Which cells.")
@click.option("--fleet", type=click.Choice(("equal", "unequal")), multiple=True, help="Only these fleets of them.")
@click.option("--load", type=click.Choice([str(load) for load in LOADS]), multiple=True, help="Only these loads, %.")
@click.option("--trace", type=click.Choice(("conv", "code")), multiple=True, help="Only these traces.")
@click.option("--policy", multiple=True, metavar="NAME", help="Only these policies (predicted_ttft, all_knowing, …).")
@click.option("--replicas", type=int, multiple=True, help="Only these numbers of replicas.")
@click.option("--requests", type=click.IntRange(1), help="At least so many that count, in whole blocks.")
@click.option("--scale", type=click.FloatRange(0.05, 20), default=1.0, show_default=True, help="Stretches all times.")
@click.option("--lanes", type=click.IntRange(1, 32), default=7, show_default=True, help="Policies served at once.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Part of the trace, and its order.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write everything to FILE.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw p99 TTFT into FILE, a PNG.")
def main(
    cells: str,
    fleet: tuple[str, ...],
    load: tuple[str, ...],
    trace: tuple[str, ...],
    policy: tuple[str, ...],
    replicas: tuple[int, ...],
    requests: int | None,
    scale: float,
    lanes: int,
    seed: int,
    json: Path | None,
    picture: Path | None,
) -> None:
    """Measure how well requests are routed: real replicas, bus, workers and simulated engines under a replayed trace.

    quick takes 3 minutes, bounds 17, full some hours. Exit status: 0 if every promise is kept by runs that are valid.
    """
    setting = Setting(seed=seed, scale=scale, lanes=lanes)
    chosen = _cells(cells, fleet, tuple(map(int, load)), trace, policy, replicas, requests)
    if not chosen:
        raise click.UsageError("no cell is left")
    here, command = machine(), " ".join(["python -m tests.routing.processes", *sys.argv[1:]])
    results = uvloop.run(_all(chosen, setting))
    click.echo(
        f"machine   {here}\ncommand   {command}\n"
        f"requests  counted after the first {chosen[0].filling_requests} of each block\n"
        f"void      above {LAG_BOUND_S * 1000:.0f} ms lag of the client (p99) or {SLIP_BOUND:.1%} slip of the engines\n"
        "ratios    with 95 % bootstrap intervals, paired by request\n"
    )
    click.echo(table(results))
    if json is not None:
        page = _Page(machine=here, command=command, setting=setting, results=results)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")
    if picture is not None:
        picture.write_bytes(draw(results))
    is_kept = all(verdict.is_met for found in results for verdict in found.verdicts)
    sys.exit(0 if is_kept and not any(found.is_void for found in results) else 1)


async def _all(cells: list[Cell], setting: Setting) -> list[Result]:
    results = []
    for number, cell in enumerate(cells, 1):
        click.echo(f"cell {number}/{len(cells)}: {cell.label}", err=True)
        runs = await measure(cell, setting, lambda line: click.echo(f"  {line}", err=True))
        results.append(result(cell, runs, setting))
    return results


if __name__ == "__main__":
    main()
