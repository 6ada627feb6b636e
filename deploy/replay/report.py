"""What a replay found, as numbers: percentiles, rates, errors by class, shares of instances, the client's own lag.

Pure: outcomes in, a report out. No clock, no terminal.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from deploy.replay.outcome import Outcome

DEFAULT_LAG_BOUND_MS: Final = 50.0
"""Lag p99 in ms above which a report is void: about a tenth of the p99 TTFT that matters on the traces here."""

_KEPT_SAMPLES: Final = 1_000_000  # 8 bytes each; a replay that loops for days must not grow without end


class Percentiles(msgspec.Struct, frozen=True):
    """Three percentiles, the greatest value and the number of values they are made of."""

    p50: float
    p90: float
    p99: float
    max: float
    n: int


class ErrorCount(msgspec.Struct, frozen=True):
    """How often one class of error came, and what its first one said."""

    count: int
    example: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole replay. Times in milliseconds, rates a second of wall time; None is unknown, never zero."""

    duration_s: float
    sent: int
    answered: int
    failed: int
    unfinished: int
    """Sent and still running when the replay was ended."""
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    """Of answered requests."""
    lag_ms: Percentiles | None
    """How much later than due requests were really sent."""
    lag_bound_ms: float
    is_void: bool
    """The client itself was too late (lag p99 above the bound): the other numbers say nothing about the server."""
    requests_per_s: float
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    errors: dict[str, ErrorCount]
    instances: dict[str, int]
    """Answers by `x-forebay-instance`."""


def percentile(ordered: "array[float] | list[float]", share: float) -> float:
    """The value below which `share` (0..1) of the values lie, linear between neighbours; `ordered` ascends, not empty.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    >>> percentile([7.0], 0.99)
    7.0
    """
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """p50, p90, p99 and the greatest of some values in their own unit; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50, p90, p99, ordered[-1], len(ordered))


class Tally:
    """Outcomes added up: exact counts, and the times of at least the last million requests."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.failed = 0
        self.lag_ms = array("d")
        self.ttft_ms = array("d")
        self.tpot_ms = array("d")
        self.e2e_ms = array("d")
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.errors: dict[str, ErrorCount] = {}
        self.instances: Counter[str] = Counter()

    def add_sent(self, lag_s: float) -> None:
        """A request was sent, this much later than due."""
        self.sent += 1
        _keep(self.lag_ms, lag_s)

    def add(self, outcome: Outcome) -> None:
        """A request that was sent is over."""
        if outcome.failure is not None:
            self.failed += 1
            known = self.errors.get(outcome.failure.kind, ErrorCount(0, outcome.failure.detail))
            self.errors[outcome.failure.kind] = ErrorCount(known.count + 1, known.example)
            return
        self.answered += 1
        _keep(self.e2e_ms, outcome.e2e_s)
        _keep(self.ttft_ms, outcome.ttft_s)
        _keep(self.tpot_ms, outcome.tpot_s)
        if outcome.prompt_tokens is not None:
            self.prompt_tokens = (self.prompt_tokens or 0) + outcome.prompt_tokens
        if outcome.output_tokens is not None:
            self.output_tokens = (self.output_tokens or 0) + outcome.output_tokens
        if outcome.instance is not None:
            self.instances[outcome.instance] += 1


def summarise(tally: Tally, *, duration_s: float, lag_bound_ms: float = DEFAULT_LAG_BOUND_MS) -> Report:
    """The report of what a tally holds after `duration_s` seconds of wall time."""
    lag_ms = percentiles(tally.lag_ms)
    return Report(
        duration_s=duration_s,
        sent=tally.sent,
        answered=tally.answered,
        failed=tally.failed,
        unfinished=tally.sent - tally.answered - tally.failed,
        ttft_ms=percentiles(tally.ttft_ms),
        tpot_ms=percentiles(tally.tpot_ms),
        e2e_ms=percentiles(tally.e2e_ms),
        lag_ms=lag_ms,
        lag_bound_ms=lag_bound_ms,
        is_void=lag_ms is not None and lag_ms.p99 > lag_bound_ms,
        requests_per_s=_rate(tally.answered, duration_s) or 0.0,
        prompt_tokens_per_s=_rate(tally.prompt_tokens, duration_s),
        output_tokens_per_s=_rate(tally.output_tokens, duration_s),
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        errors=tally.errors,
        instances=dict(sorted(tally.instances.items())),
    )


def _keep(samples: "array[float]", value_s: float | None) -> None:
    if value_s is None:
        return
    samples.append(value_s * 1000)
    if len(samples) > 2 * _KEPT_SAMPLES:
        del samples[:_KEPT_SAMPLES]


def _rate(amount: int | None, duration_s: float) -> float | None:
    return None if amount is None or duration_s <= 0 else amount / duration_s
