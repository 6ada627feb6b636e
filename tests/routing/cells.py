"""Cells of a table: one policy in one setting over several seeds, played side by side in processes."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tests.routing.figures import Figures, figures
from tests.routing.load import STEADY_REQUESTS, arrivals, fleet_speeds
from tests.routing.simulation import play


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One setting; every policy in it meets the very same arrivals."""

    policy: str
    engines: str
    replicas: int
    load: float
    trace: str = "conv"
    seeds: int = 5
    limit: int = 0
    """Requests of a seed; 0: the whole trace."""
    instances: int = 8
    steady: int = STEADY_REQUESTS


def play_cell(cell: Cell) -> Figures:
    """Play all seeds of a cell."""
    speeds = fleet_speeds(cell.engines, cell.instances)
    runs = []
    for seed in range(cell.seeds):
        coming = arrivals(
            cell.trace,
            seed=seed,
            limit=cell.limit,
            load=cell.load,
            speeds=speeds,
            replicas=cell.replicas,
            steady=cell.steady,
        )
        runs.append(play(coming, speeds, cell.policy, replicas=cell.replicas, seed=seed))
    return figures(runs)


def play_cells(cells: Iterable[Cell], *, processes: int | None = None) -> Iterator[tuple[Cell, Figures]]:
    """Play all cells, as many at a time as there are cores, in their order."""
    cells = list(cells)
    with ProcessPoolExecutor(processes) as pool:
        yield from zip(cells, pool.map(play_cell, cells), strict=True)
