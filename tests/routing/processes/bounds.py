"""What is promised of `predicted_ttft`, and whether the runs of a cell keep it. Pure.

The promises are those of the simulation, where they are hard; with real processes and their jitter each is a quarter
looser, that for replicas as it is stated: 1.2.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tests.routing.processes.figures import Ratio, Statistic, is_good, mean_e2e_s, ratio, ttft_p99_s
from tests.routing.processes.plan import Cell, Policy
from tests.routing.processes.replaying import Shot

_OURS: Final = "predicted_ttft"
_LOOSER: Final = 1.25


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and what was found."""

    what: str
    found: Ratio
    limit: float
    is_at_most: bool = True
    """False: the limit is a lower one."""

    @property
    def is_met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.found.value <= self.limit if self.is_at_most else self.found.value >= self.limit


def verdicts(cell: Cell, shots: Mapping[Policy, Sequence[Shot]], *, scale: float) -> list[Verdict]:
    """Every promise that this cell has the policies for."""
    is_equal = cell.fleet == "equal"
    found = [
        _against(shots, Policy(_OURS, replicas), Policy(_OURS, 1), 1.2, "p99 TTFT", ttft_p99_s) for replicas in (4, 8)
    ]
    for replicas in (1, 4):
        ours, best = Policy(_OURS, replicas), Policy("all_knowing")
        found.append(_against(shots, ours, best, 1.1 * _LOOSER, "p99 TTFT", ttft_p99_s))
        if not is_equal:
            found.append(_against(shots, ours, best, 0.95 * _LOOSER, "mean E2E", mean_e2e_s))
        found.append(_good(shots, ours, 1 - 0.01 * _LOOSER, scale=scale))
    limit = (0.7 if is_equal else 0.5) * _LOOSER
    found.append(_against(shots, Policy(_OURS, 4), Policy("fewest_own", 4), limit, "p99 TTFT", ttft_p99_s))
    return [verdict for verdict in found if verdict is not None]


def _against(
    shots: Mapping[Policy, Sequence[Shot]], ours: Policy, other: Policy, limit: float, what: str, statistic: Statistic
) -> Verdict | None:
    if ours not in shots or other not in shots:
        return None
    found = ratio(shots[ours], shots[other], statistic)
    return Verdict(what=f"{what}, {ours.label} / {other.label}", found=found, limit=round(limit, 4))


def _good(shots: Mapping[Policy, Sequence[Shot]], ours: Policy, limit: float, *, scale: float) -> Verdict | None:
    if ours not in shots:
        return None
    # Over the requests themselves: a ratio to a statistic that is 1.
    every = [msgspec.structs.replace(shot, failure=None, ttft_s=0.0, tpot_s=0.0) for shot in shots[ours]]
    found = ratio(shots[ours], every, lambda some: sum(is_good(shot, scale=scale) for shot in some) / len(some))
    return Verdict(what=f"goodput, {ours.label}", found=found, limit=round(limit, 4), is_at_most=False)
