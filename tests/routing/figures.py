"""What a run was worth: percentiles of TTFT, mean E2E, goodput, shares. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from tests.routing.simulation import Run

#: A request is served well within these, for engines of speed 1 (the fleet's base): its first token, and each further.
GOOD_TTFT_S: Final = 1.0
GOOD_TPOT_S: Final = 0.060

#: Workers learn their engines' speeds from the first requests of a run, which count for no policy.
WARM_UP_REQUESTS_PER_INSTANCE: Final = 50


class Figures(msgspec.Struct, frozen=True):
    """One policy in one setting, the requests of all seeds together."""

    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_mean_s: float
    goodput: float
    """Share of requests served well."""
    shares: tuple[float, ...]
    """Share of the requests that each instance got."""
    prediction_error: float | None
    """Median of |predicted - real| / real of the workers' predictions; None where nobody predicts."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed.

    >>> percentile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def figures(runs: Sequence[Run]) -> Figures:
    """Figures over the requests of several seeds."""
    warm_up = WARM_UP_REQUESTS_PER_INSTANCE * len(runs[0].speeds)
    jobs = [job for run in runs for job in run.jobs[min(warm_up, len(run.jobs) // 4) :]]
    ttfts = [job.first_s - job.at_s for job in jobs]
    good = 0
    for job in jobs:
        tpot_s = (job.end_s - job.first_s) / max(1, job.output_tokens - 1)
        good += job.first_s - job.at_s <= GOOD_TTFT_S and tpot_s <= GOOD_TPOT_S
    counted = [0] * len(runs[0].speeds)
    for job in jobs:
        counted[job.site] += 1
    errors = [
        abs(predicted_s - (real_s := job.first_s - job.at_s)) / real_s
        for run in runs
        for job, predicted_s in run.predictions
        if job.index >= warm_up
    ]
    return Figures(
        len(jobs),
        percentile(ttfts, 0.5),
        percentile(ttfts, 0.99),
        sum(job.end_s - job.at_s for job in jobs) / len(jobs),
        good / len(jobs),
        tuple(round(count / len(jobs), 4) for count in counted),
        percentile(errors, 0.5) if errors else None,
    )
