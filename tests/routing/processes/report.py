"""The results as a page for JSON and as one aligned table. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from tests.routing.processes.bounds import Verdict, verdicts
from tests.routing.processes.figures import Figures, figures, percentile
from tests.routing.processes.measuring import Run, Setting
from tests.routing.processes.plan import Cell, Policy
from tests.routing.processes.replaying import Shot


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of a cell, its blocks together."""

    policy: Policy
    figures: Figures
    lag_p99_ms: float
    slip: float
    cpu: float
    machine: float
    repeats: int
    void_blocks: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    cell: Cell
    rows: list[Row]
    verdicts: list[Verdict]

    @property
    def is_void(self) -> bool:
        """Whether a block of it was void to the end."""
        return any(row.void_blocks for row in self.rows)


def result(cell: Cell, runs: Sequence[Run], setting: Setting) -> Result:
    """Everything about a cell."""
    shots = {policy: [shot for run in runs if run.policy == policy for shot in run.shots] for policy in cell.policies}
    rows = [_row(policy, [run for run in runs if run.policy == policy], shots[policy], setting) for policy in shots]
    return Result(cell=cell, rows=rows, verdicts=verdicts(cell, shots, scale=setting.scale))


def _row(policy: Policy, runs: Sequence[Run], shots: Sequence[Shot], setting: Setting) -> Row:
    answered = [sum(counts) for counts in zip(*(run.answered for run in runs), strict=True)]
    return Row(
        policy=policy,
        figures=figures(shots, answered, scale=setting.scale),
        lag_p99_ms=percentile([shot.lag_s for shot in shots], 0.99) * 1000,
        slip=sum(run.slip for run in runs) / len(runs),
        cpu=sum(run.cpu for run in runs) / len(runs),
        machine=sum(run.machine for run in runs) / len(runs),
        repeats=sum(run.repeats for run in runs),
        void_blocks=sum(run.is_void for run in runs),
    )


HEAD: Final = (
    "policy × replicas", "requests", "TTFT p50", "p99 ms", "E2E ms", "goodput", "failed", "given up", "lag p99", "slip",
    "CPU", "share of each engine, %",
)  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """All cells in one table; a heading and the verdicts for each."""
    cells = [(found, [_cells(row) for row in found.rows]) for found in results]
    every = [HEAD, *(row for _, rows in cells for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(HEAD))]
    lines = [_line(HEAD, widths)]
    for found, rows in cells:
        void = "  VOID: the machine was too slow" if found.is_void else ""
        lines += ["", f"{found.cell.label}{void}", *(_line(row, widths) for row in rows)]
        lines += [f"  {_verdict(verdict)}" for verdict in found.verdicts]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    found = row.figures
    return (
        "  " + row.policy.label,
        str(found.requests),
        f"{found.ttft_p50_ms:.0f}",
        f"{found.ttft_p99_ms:.0f}",
        f"{found.e2e_mean_ms:.0f}",
        f"{found.goodput:.4f}",
        str(found.failed),
        str(found.unfinished),
        f"{row.lag_p99_ms:.1f}",
        f"{row.slip:.2%}",
        f"{row.cpu:.0%}",
        " ".join(f"{share * 100:.1f}" for share in found.shares),
    )


def _verdict(verdict: Verdict) -> str:
    found = verdict.found
    sign = "≤" if verdict.is_at_most else "≥"
    mark = "✓" if verdict.is_met else "✗"
    return f"{mark} {verdict.what}: {found.value:.3f} [{found.low:.3f}–{found.high:.3f}] {sign} {verdict.limit:g}"
