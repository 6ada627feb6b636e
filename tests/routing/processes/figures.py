"""What the runs of a cell amount to: figures by policy, ratios with their intervals, bounds met or missed. Pure."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from tests.routing.figures import GOOD_TPOT_S, GOOD_TTFT_S, percentile
from tests.routing.processes.replaying import Shot

#: Neighbouring requests suffer the same burst: they are drawn together.
DRAWN_TOGETHER: Final = 50

DRAWS: Final = 1000

__all__ = ["Figures", "Ratio", "figures", "mean_e2e_s", "percentile", "ratio", "ttft_p99_s"]

Statistic = Callable[[Sequence[Shot]], float]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one cell."""

    requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    e2e_mean_ms: float
    goodput: float
    """Share of requests with TTFT and time per token within the limits, scaled with the engines."""
    shares: tuple[float, ...]
    """Share of the requests that each engine answered."""
    failed: int
    unfinished: int
    """Given up, the fleet being overloaded: their times are lower bounds."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One policy against another on the same requests."""

    value: float
    low: float
    """Ends of the 95 % bootstrap interval."""
    high: float


def figures(shots: Sequence[Shot], answered: Sequence[int], *, scale: float) -> Figures:
    """Figures over all blocks."""
    total = max(1, sum(answered))
    return Figures(
        requests=len(shots),
        ttft_p50_ms=percentile([shot.ttft_s for shot in shots], 0.5) * 1000,
        ttft_p99_ms=ttft_p99_s(shots) * 1000,
        e2e_mean_ms=mean_e2e_s(shots) * 1000,
        goodput=sum(is_good(shot, scale=scale) for shot in shots) / len(shots),
        shares=tuple(round(count / total, 4) for count in answered),
        failed=sum(shot.failure not in (None, "unfinished") for shot in shots),
        unfinished=sum(shot.failure == "unfinished" for shot in shots),
    )


def is_good(shot: Shot, *, scale: float) -> bool:
    """Whether a request was served well.

    >>> is_good(Shot(0, 0.0, 0.9, 5.0, 0.02), scale=1.0), is_good(Shot(0, 0.0, 0.9, 5.0, 0.02), scale=0.5)
    (True, False)
    """
    return shot.failure is None and shot.ttft_s <= GOOD_TTFT_S * scale and shot.tpot_s <= GOOD_TPOT_S * scale


def ttft_p99_s(shots: Sequence[Shot]) -> float:
    """The time to first token that one request of a hundred exceeds, seconds."""
    return percentile([shot.ttft_s for shot in shots], 0.99)


def mean_e2e_s(shots: Sequence[Shot]) -> float:
    """Mean time from sending to the last byte, seconds."""
    return sum(shot.e2e_s for shot in shots) / len(shots)


def ratio(ours: Sequence[Shot], other: Sequence[Shot], statistic: Statistic, *, draws: int = DRAWS) -> Ratio:
    """A statistic of ours over that of the other, with a paired bootstrap interval.

    The requests are the same, so that they are drawn together on both sides, in stretches of neighbours.

    >>> ratio([Shot(0, 0, 1.0, 1, 0)], [Shot(0, 0, 2.0, 1, 0)], ttft_p99_s, draws=10)
    Ratio(value=0.5, low=0.5, high=0.5)
    """
    theirs = {shot.number: shot for shot in other}
    pairs = [(shot, theirs[shot.number]) for shot in ours if shot.number in theirs]
    stretches = [pairs[at : at + DRAWN_TOGETHER] for at in range(0, len(pairs), DRAWN_TOGETHER)]
    rng = Random(0)
    drawn = sorted(_of(rng.choices(stretches, k=len(stretches)), statistic) for _ in range(draws))
    return Ratio(
        value=_of(stretches, statistic), low=drawn[round(0.025 * (draws - 1))], high=drawn[round(0.975 * (draws - 1))]
    )


def _of(stretches: Sequence[Sequence[tuple[Shot, Shot]]], statistic: Statistic) -> float:
    pairs = [pair for stretch in stretches for pair in stretch]
    return statistic([ours for ours, _ in pairs]) / statistic([theirs for _, theirs in pairs])
