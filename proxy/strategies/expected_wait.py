"""`expected_wait`: how long the work ahead of a request takes, and how full the cache is; in seconds.

    score = (waiting tokens + in-transit tokens) / throughput + kv_pressure_weight * k / (1 - k)

waiting tokens     tokens still to prefill at the instance, as its worker says (its own queue and the engine's line);
                   else requests that wait * mean_prefill_tokens; else what the ladder gives. Never 0 for silence.
in-transit tokens  reserved by any replica, and not yet in a record.
throughput         the instance's calibrated capacity for prefill, tokens/s; else the median of those known; else
                   default_throughput. Capacity, since a rate observed under low demand says nothing about it.
k                  share of the KV cache in use, clamped to [0, kv_clamp].

Example: 6 000 tokens wait, 2 000 are in transit, 4 000 tokens/s, cache half full:
8 000 / 4 000 + 0.15 * 0.5 / 0.5 = 2.15 s.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from bus.record import PressureRecord
from proxy.candidates import Candidate, Evaluation, RequestWork, Slopes, of_terms
from proxy.ladder import Ladder, of_own_counts
from proxy.strategies.settings import CostSettings
from proxy.strategies.terms import known_or_median, kv_barrier_s

_WAITING: Final = (
    "prepare_queue_depth",
    "active_prepare",
    "ready_queue_depth",
    "active_ready",
    "pending_prefill_count",
)


class ExpectedWait:
    """Scores candidates by the seconds of work ahead and the pressure on their cache."""

    name = "expected_wait"

    def __init__(self, settings: CostSettings) -> None:
        self.settings = settings
        self._ladder = Ladder(("queued_tokens", "kv_usage"), {"queued_tokens": self._waiting_tokens})

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score every candidate; what is unknown is resolved by the ladder."""
        settings = self.settings
        resolved = self._ladder.resolve(candidates, rng)
        instances = [candidate.instance for candidate in candidates]
        if resolved.tier != "measured":
            return of_own_counts(self.name, instances, resolved)
        throughputs = known_or_median([_throughput(candidate) for candidate in candidates], settings.default_throughput)
        values = []
        for candidate, row, throughput in zip(candidates, resolved.rows, throughputs, strict=True):
            known = dict(zip(resolved.signals, row, strict=True))
            values.append(
                [
                    known.get("queued_tokens", 0.0) / throughput,
                    candidate.in_transit_tokens / throughput,
                    kv_barrier_s(
                        known.get("kv_usage", 0.0), weight_s=settings.kv_pressure_weight, clamp=settings.kv_clamp
                    ),
                ]
            )
        return of_terms(
            self.name,
            resolved.tier,
            instances,
            ("queued_s", "in_transit_s", "kv_barrier_s"),
            (1.0, 1.0, 1.0),
            values,
            resolved.imputed,
            slopes=[Slopes(per_token=1 / throughput) for throughput in throughputs],
        )

    def _waiting_tokens(self, record: PressureRecord) -> float | None:
        """Tokens that wait at an instance; from the number of waiting requests where nobody has counted tokens."""
        if record.queued_tokens is not None:
            return record.queued_tokens
        depths: list[int] = [depth for name in _WAITING if (depth := getattr(record, name)) is not None]
        if len(depths) < len(_WAITING):  # those that are not known are not zero
            return None
        return (sum(depths) + (record.engine_waiting or 0)) * self.settings.mean_prefill_tokens


def _throughput(candidate: Candidate) -> float | None:
    record = candidate.pressure.record
    return record.prefill_tokens_per_s if record is not None else None
