"""`round_robin`: everybody in turn, whatever the load. It ignores every signal."""

from collections.abc import Sequence
from random import Random

from proxy.candidates import Candidate, Evaluation, RequestWork


class RoundRobin:
    """All candidates tie, so the rotation decides."""

    name = "round_robin"

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score everybody 0."""
        return Evaluation(
            strategy=self.name,
            tier="round_robin",
            instances=[candidate.instance for candidate in candidates],
            signals=(),
            weights=(),
            values=[()] * len(candidates),
            totals=[0.0] * len(candidates),
            imputed={},
        )
