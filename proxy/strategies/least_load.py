"""`least_load`: the layered score.

    score = Σ weight × signal

over what is in flight (lifecycle; what is in transit counts in), what the worker's queues hold now (instantaneous) and
what its timeline predicts (predicted). The layers overlap on purpose: a request that waits counts in flight and in its
queue. With the default weights one second of predicted backlog weighs as much as one request. Example: 3 in flight, of
them 2 decoding and 1 in prefill, and 800 ms of backlog: 3 × 1 + 2 × 0.5 + 1 × 1 + 800 × 0.001 = 5.8.
"""

from collections.abc import Sequence
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from proxy.candidates import Candidate, Evaluation, RequestWork, Slopes, of_terms
from proxy.ladder import Ladder


class LeastLoadWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Weight of each signal in the score of `least_load`; 0 leaves a signal out."""

    inflight: Annotated[float, Meta(ge=0, le=1e6, description="Per request accepted and not finished.")] = 1.0
    active_prepare: Annotated[float, Meta(ge=0, le=1e6, description="Per request being prepared.")] = 1.0
    active_ready: Annotated[float, Meta(ge=0, le=1e6, description="Per request being handed to the engine.")] = 1.0
    prepare_queue_depth: Annotated[float, Meta(ge=0, le=1e6, description="Per request waiting to be prepared.")] = 0.25
    ready_queue_depth: Annotated[float, Meta(ge=0, le=1e6, description="Per request waiting for a slot.")] = 0.25
    pending_prefill_count: Annotated[
        float, Meta(ge=0, le=1e6, description="Per request on the engine without a first token.")
    ] = 1.0
    active_decode_count: Annotated[float, Meta(ge=0, le=1e6, description="Per request on the engine that decodes.")] = (
        0.5
    )
    predicted_total_backlog_ms: Annotated[
        float, Meta(ge=0, le=1e6, description="Per millisecond of predicted backlog.")
    ] = 0.001
    qps_1m: Annotated[float, Meta(ge=0, le=1e6, description="Per request a second over the last minute.")] = 0.0


class LeastLoad:
    """Scores candidates by the layered sum of their signals; signals of weight 0 are left out."""

    name = "least_load"

    def __init__(self, weights: LeastLoadWeights) -> None:
        self.weights = {signal: weight for signal, weight in msgspec.structs.asdict(weights).items() if weight > 0}
        self._ladder = Ladder(list(self.weights))

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score every candidate; what is unknown is resolved by the ladder."""
        resolved = self._ladder.resolve(candidates, rng)
        if resolved.tier == "measured" and "inflight" in resolved.signals:
            column = resolved.signals.index("inflight")
            for candidate, row in zip(candidates, resolved.rows, strict=True):
                row[column] += candidate.in_transit_requests
        weights = [self.weights.get(signal, 1.0) for signal in resolved.signals]
        slope = Slopes(per_request=self.weights.get("inflight", 0.0))
        return of_terms(
            self.name,
            resolved.tier,
            [candidate.instance for candidate in candidates],
            resolved.signals,
            weights,
            resolved.rows,
            resolved.imputed,
            slopes=[slope] * len(candidates),
        )
