"""What a cluster looks like from outside: one screen, one line, one summary. Pure: a snapshot in, text out."""

from collections.abc import Mapping

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from deploy import loads_view
from deploy.cluster.gauge import Totals


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment."""

    elapsed_s: float
    totals: Totals
    requests_per_s: float | None
    loads: loads_view.Loads | None
    """One replica's instance loads, `selected` summed over all replicas; None while no replica answers."""
    restarts: Mapping[str, int]


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """Return a number for people; what is unknown is a dash, never zero.

    >>> number(12.34, " ms"), number(None, " ms")
    ('12 ms', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def counts(snapshot: Snapshot) -> str:
    """Return what clients have seen, on one line."""
    totals = snapshot.totals
    return (
        f"{snapshot.elapsed_s:6.1f} s  done {totals.requests}  {number(snapshot.requests_per_s, digits=1)}/s"
        f"  errors {number(totals.errors)}"
        f"  TTFT p50 {number(totals.ttft_p50_ms, ' ms')} p99 {number(totals.ttft_p99_ms, ' ms')}"
    )


def restarted(restarts: Mapping[str, int]) -> str:
    """Return which parts had to be started again.

    >>> restarted({"worker-sim-1": 2})
    'worker-sim-1 ×2'
    """
    return ", ".join(f"{name} ×{count}" for name, count in restarts.items())


def plain_line(snapshot: Snapshot) -> str:
    """Return the snapshot as the one line a second of an output that is no terminal."""
    loads = loads_view.plain_line(snapshot.loads) if snapshot.loads else "no replica answers"
    again = f"  restarted {restarted(snapshot.restarts)}" if snapshot.restarts else ""
    return f"{counts(snapshot)}  {loads}{again}"


def screen(snapshot: Snapshot) -> RenderableType:
    """Return the snapshot as the live screen of a terminal."""
    lines: list[RenderableType] = [Text(counts(snapshot), style="bold")]
    lines.append(loads_view.render(snapshot.loads) if snapshot.loads else Text("no replica answers", style="yellow"))
    if snapshot.restarts:
        lines.append(Text(f"restarted: {restarted(snapshot.restarts)}", style="yellow"))
    return Group(*lines, Text("Ctrl-C ends everything", style="dim"))


def summary(snapshot: Snapshot, shares: Mapping[str, int]) -> list[str]:
    """Return the lines that stand at the end: what was done, by whom, and what went wrong."""
    totals = snapshot.totals
    mean = totals.requests / snapshot.elapsed_s if snapshot.elapsed_s > 0 else None
    lines = [
        f"requests   {totals.requests} in {snapshot.elapsed_s:.1f} s ({number(mean, '/s', 1)})",
        f"errors     {number(totals.errors)}",
        f"TTFT       p50 {number(totals.ttft_p50_ms, ' ms')}, p99 {number(totals.ttft_p99_ms, ' ms')}",
        f"instances  {shared(shares)}",
        f"restarts   {restarted(snapshot.restarts) or 'none'}",
    ]
    return ["", *lines]


def shared(shares: Mapping[str, int]) -> str:
    """Return each instance's share of the requests.

    >>> shared({"sim-1": 30, "sim-2": 10})
    'sim-1 75 %, sim-2 25 %'
    """
    total = sum(shares.values())
    return (
        ", ".join(f"{name} {count / total:.0%}".replace("%", " %") for name, count in sorted(shares.items()) if total)
        or "–"
    )
