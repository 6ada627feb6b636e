"""`python -m tests.routing.sampling`: what it costs that a choice reads only some instances of a large pool.

p99 TTFT in seconds and its ratio to choices from the whole pool, on the same requests.
"""

import argparse

from tests.routing.cells import Cell, play_cells
from tests.routing.figures import Figures
from tests.routing.load import FLEETS
from tests.routing.policies import SAMPLES

_HEAD = f"{'instances':>9} {'engines':8} {'read':10} {'p50':>7} {'p99':>7} {'ratio':>6} {'E2E':>6} {'good':>6}"


def row(cell: Cell, found: Figures, whole: Figures) -> str:
    """One line of the table."""
    return (
        f"{cell.instances:9} {cell.engines:8} {cell.policy:10} {found.ttft_p50_s:7.3f} {found.ttft_p99_s:7.3f} "
        f"{found.ttft_p99_s / whole.ttft_p99_s:6.3f} {found.e2e_mean_s:6.2f} {found.goodput:6.3f}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.routing.sampling", description=__doc__)
    parser.add_argument("--instances", nargs="+", type=int, default=[100, 300, 1000])
    parser.add_argument("--engines", nargs="+", choices=list(FLEETS), default=list(FLEETS))
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.75)
    parser.add_argument("--requests", type=int, default=60, help="for each instance; the first quarter does not count")
    parser.add_argument("--processes", type=int, default=None)
    return parser.parse_args()


def main() -> None:
    """Play every pool with every sample."""
    asked = _arguments()
    cells = [
        Cell(
            policy=policy,
            engines=engines,
            replicas=asked.replicas,
            load=asked.load,
            seeds=1,
            limit=instances * asked.requests,
            instances=instances,
            steady=0,
        )
        for instances in asked.instances
        for engines in asked.engines
        for policy in SAMPLES
    ]
    print(f"load {asked.load:.2f}, {asked.replicas} replicas, {asked.requests} requests an instance\n{_HEAD}")
    whole = None
    for cell, found in play_cells(cells, processes=asked.processes):
        whole = found if cell.policy == "whole-pool" or whole is None else whole
        print(row(cell, found, whole), flush=True)


if __name__ == "__main__":
    main()
