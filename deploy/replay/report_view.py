"""A replay's report for people: a table on a terminal, the same rows as aligned plain text elsewhere."""

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.loads import UNKNOWN
from deploy.replay.report import Percentiles, Report

_MOST_INSTANCES = 64


def render(report: Report) -> RenderableType:
    """The report as something rich prints: verdict, times, rates, errors, shares."""
    parts: list[RenderableType] = [_headline(report), _times(report)]
    parts.append(Text("\n".join(_rates(report))))
    if report.errors:
        parts.append(_errors(report))
    if report.instances:
        parts.append(_shares(report))
    return Group(*parts)


def plain_text(report: Report) -> str:
    """The same rows without colour, box lines or the width of a terminal."""
    out = io.StringIO()
    Console(file=out, width=160, no_color=True, force_terminal=False).print(render(report))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _headline(report: Report) -> Text:
    text = Text(f"{report.answered} of {report.sent} requests answered in {report.duration_s:.1f} s")
    text.append(f", {report.failed} failed", style="bold red" if report.failed else "")
    if report.unfinished:
        text.append(f", {report.unfinished} unfinished when stopped", style="yellow")
    if report.is_void and report.lag_ms is not None:
        text.append(
            f"\nVOID: the client was late (lag p99 {report.lag_ms.p99:.1f} ms, bound {report.lag_bound_ms:g} ms); "
            "these times say nothing about the server",
            style="bold red",
        )
    return text


def _times(report: Report) -> Table:
    table = _table("", "p50", "p90", "p99", "max")
    rows = {
        "TTFT ms": report.ttft_ms,
        "TPOT ms": report.tpot_ms,
        "E2E ms": report.e2e_ms,
        "client lag ms": report.lag_ms,
    }
    for name, values in rows.items():
        table.add_row(name, *_cells(values))
    return table


def _cells(values: Percentiles | None) -> list[str]:
    if values is None:
        return [UNKNOWN] * 4
    return [f"{value:,.1f}" for value in (values.p50, values.p90, values.p99, values.max)]


def _rates(report: Report) -> Iterator[str]:
    yield f"requests/s {report.requests_per_s:,.2f}"
    yield f"prompt tokens/s {_number(report.prompt_tokens_per_s)}"
    yield f"output tokens/s {_number(report.output_tokens_per_s)}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def _errors(report: Report) -> Table:
    table = _table("errors", "count", "first one")
    table.columns[2].justify = "left"
    for kind, error in sorted(report.errors.items(), key=lambda item: -item[1].count):
        table.add_row(Text(kind, style="red"), str(error.count), Text(error.example))
    return table


def _shares(report: Report) -> Table:
    table = _table("instance", "answers", "share")
    total = sum(report.instances.values())
    for instance, count in list(report.instances.items())[:_MOST_INSTANCES]:
        table.add_row(Text(instance), str(count), f"{count / total:.1%}")
    if len(report.instances) > _MOST_INSTANCES:
        table.add_row(f"and {len(report.instances) - _MOST_INSTANCES} more", "", "")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    return table
