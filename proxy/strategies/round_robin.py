"""`round_robin`: everybody in turn, whatever the load. It ignores every signal."""

from collections.abc import Sequence
from random import Random

from proxy.candidates import Candidate, Evaluation, RequestWork, of_terms


class RoundRobin:
    """All candidates tie, so the rotation decides."""

    name = "round_robin"

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score everybody 0."""
        instances = [candidate.instance for candidate in candidates]
        return of_terms(self.name, "round_robin", instances, (), (), [()] * len(candidates), {})
