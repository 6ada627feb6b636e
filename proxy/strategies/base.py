"""What a strategy is, and how the best of an evaluation is chosen. No I/O, no clock."""

from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

from proxy.candidates import Candidate, Choice, Evaluation, RequestWork
from proxy.rotation import Rotation

#: Totals closer together than this share of the larger one tie: sums of the same numbers in another order.
TIE: Final = 1e-12


class Strategy(Protocol):
    """Scores candidates; the lowest total is chosen, ties in rotation."""

    name: str

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score every candidate for `request`; `rng` is used only where something is unknown."""


def select(
    strategy: Strategy, candidates: Sequence[Candidate], request: RequestWork, rng: Random, rotation: Rotation
) -> Choice:
    """Choose one of `candidates` (not empty), and say why. Notes the choice in `rotation`."""
    evaluation = strategy.evaluate(candidates, request, rng)
    index = _first_of_best(evaluation, range(len(candidates)), rotation)
    others = [i for i in range(len(candidates)) if i != index]
    runner_up = _first_of_best(evaluation, others, rotation) if others else None
    rotation.note(evaluation.instances[index])
    return Choice(evaluation, index, runner_up)


def _first_of_best(evaluation: Evaluation, indices: Sequence[int], rotation: Rotation) -> int:
    """Of the candidates with the lowest total the one whose turn it is."""
    totals = evaluation.totals
    best = min(totals[i] for i in indices)
    limit = best + TIE * max(1.0, abs(best))
    tied = {evaluation.instances[i]: i for i in indices if totals[i] <= limit}
    return tied[rotation.first(list(tied))]
