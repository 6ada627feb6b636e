"""When each request of a replay is due: the trace's own gaps, shortened, rescaled to a rate, repeated.

Open loop: due times depend on the trace and on nothing that answers. No clock; a due time counts from the start.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import msgspec

from deploy.replay.traces import TraceRow


class Due(NamedTuple):
    """A request and the moment it has to be sent."""

    due_s: float
    """Seconds after the start of the replay."""
    row: TraceRow


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are sent, and how fast."""

    start: int = 0
    """Rows of the trace left out at its beginning."""
    limit: int | None = None
    """Requests sent in all, repetitions included; None: the trace decides."""
    loop: bool = False
    """Begin again at the first row after the last, one mean gap later."""
    speedup: float = 1.0
    """Factor by which the trace's gaps are shortened, > 0."""
    rate: float | None = None
    """Mean requests/s to rescale to, > 0, in place of `speedup`."""


def natural_rate(rows: Iterator[TraceRow]) -> float | None:
    """Mean arrivals a second of these rows, (n - 1) / span; None when they have no span.

    >>> natural_rate(iter([TraceRow(10.0, 1, 1), TraceRow(11.0, 1, 1), TraceRow(14.0, 1, 1)]))
    0.5
    """
    first_s = last_s = 0.0
    rows_seen = 0
    for row in rows:
        first_s = row.at_s if not rows_seen else first_s
        last_s = row.at_s
        rows_seen += 1
    return (rows_seen - 1) / (last_s - first_s) if last_s > first_s else None


def effective_speedup(plan: Plan, open_rows: Callable[[], Iterator[TraceRow]]) -> float:
    """The factor that this plan shortens gaps by: its speedup, or what brings the chosen rows to its rate.

    Raises:
        ValueError: a rate was asked for and the chosen rows all have one time.

    """
    if plan.rate is None:
        return plan.speedup
    natural = natural_rate(_one_pass(plan, open_rows))
    if natural is None:
        raise ValueError("--rate needs at least two rows with different times")
    return plan.rate / natural


def schedule(plan: Plan, open_rows: Callable[[], Iterator[TraceRow]]) -> Iterator[Due]:
    """Every request of a replay with the second it is due at, earliest first; without end if the plan loops unlimited.

    >>> rows = [TraceRow(10.0, 1, 1), TraceRow(11.0, 2, 1), TraceRow(14.0, 3, 1)]
    >>> [due.due_s for due in schedule(Plan(speedup=2, loop=True, limit=5), lambda: iter(rows))]
    [0.0, 0.5, 2.0, 3.0, 3.5]
    """
    speedup = effective_speedup(plan, open_rows)
    return islice(_passes(plan, open_rows, speedup), plan.limit)


def _one_pass(plan: Plan, open_rows: Callable[[], Iterator[TraceRow]]) -> Iterator[TraceRow]:
    end = None if plan.limit is None else plan.start + plan.limit
    return islice(open_rows(), plan.start, end)


def _passes(plan: Plan, open_rows: Callable[[], Iterator[TraceRow]], speedup: float) -> Iterator[Due]:
    offset_s = 0.0
    for _ in count() if plan.loop else range(1):
        first_s = last_s = 0.0
        rows_seen = 0
        for row in islice(open_rows(), plan.start, None):
            first_s = row.at_s if not rows_seen else first_s
            last_s = row.at_s
            rows_seen += 1
            yield Due((offset_s + row.at_s - first_s) / speedup, row)
        if not rows_seen:
            return
        span_s = last_s - first_s
        # A trace without a span is repeated once a second: without any gap the loop would never let go of the CPU.
        offset_s += span_s + (span_s / (rows_seen - 1) if span_s > 0 else 1.0)
