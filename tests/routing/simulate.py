"""`python -m tests.routing.simulate`: every policy against every other in virtual time, as a table and as JSON.

Latencies are seconds. `good` is the share of requests with TTFT ≤ 1 s and ≤ 60 ms a further token; `shares` of fast to
slow instances, per mille; `error` the median relative error of the workers' predictions.
"""

import argparse
import time
from pathlib import Path

import msgspec

from tests.routing.cells import Cell, play_cells
from tests.routing.figures import Figures
from tests.routing.load import FLEETS, STEADY_REQUESTS, TRACES
from tests.routing.policies import POLICIES

_HEAD = f"{'policy':18} {'p50':>7} {'p99':>8} {'E2E':>7} {'good':>6} {'error':>6}  shares"


def row(cell: Cell, found: Figures) -> str:
    """One line of the table."""
    error = "" if found.prediction_error is None else f"{found.prediction_error:.3f}"
    shares = " ".join(f"{share * 1000:.0f}" for share in found.shares[:8])
    return (
        f"{cell.policy:18} {found.ttft_p50_s:7.3f} {found.ttft_p99_s:8.3f} {found.e2e_mean_s:7.2f} "
        f"{found.goodput:6.3f} {error:>6}  {shares}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.routing.simulate", description=__doc__)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="POLICY")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--engines", nargs="+", choices=list(FLEETS), default=list(FLEETS))
    parser.add_argument("--load", nargs="+", type=float, default=[0.75])
    parser.add_argument("--trace", nargs="+", choices=list(TRACES), default=["conv"])
    parser.add_argument("--seeds", type=int, default=1, help="each plays another part of the trace, in another order")
    parser.add_argument("--limit", type=int, default=4000, help="requests of a seed; 0: the whole trace")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument(
        "--steady", type=int, default=STEADY_REQUESTS, help="requests over which the load is held; 0: the whole trace"
    )
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Play what was asked for."""
    asked = _arguments()
    cells = [
        Cell(
            policy=policy,
            engines=engines,
            replicas=replicas,
            load=load,
            trace=trace,
            seeds=asked.seeds,
            limit=asked.limit,
            instances=asked.instances,
            steady=asked.steady,
        )
        for trace in asked.trace
        for engines in asked.engines
        for load in asked.load
        for replicas in asked.replicas
        for policy in asked.policies
    ]
    began_s = time.perf_counter()
    heading, found = None, []
    for cell, figures in play_cells(cells, processes=asked.processes):
        setting = (
            f"{cell.trace}, {cell.instances} {cell.engines} engines, load {cell.load:.2f}, {cell.replicas} replicas"
        )
        if setting != heading:
            heading = setting
            print(f"\n{setting}\n{_HEAD}")
        print(row(cell, figures), flush=True)
        found.append({"cell": msgspec.to_builtins(cell), "figures": msgspec.to_builtins(figures)})
    took_s = time.perf_counter() - began_s
    print(f"\n{len(cells)} cells of {asked.seeds} × {asked.limit or 'all'} requests in {took_s:.0f} s")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


if __name__ == "__main__":
    main()
