"""What a strategy is, and how the best of an evaluation is chosen. No I/O, no clock."""

import heapq
from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

from bus.in_transit import MOST_OFFERS, Offer
from proxy.candidates import Candidate, Choice, Evaluation, RequestWork
from proxy.rotation import Rotation

#: Candidates that are ranked: those that may be offered, and one to be the runner-up.
RANKED: Final = MOST_OFFERS + 1


class Strategy(Protocol):
    """Scores candidates; the lowest total is chosen, ties in rotation."""

    name: str

    def evaluate(self, candidates: Sequence[Candidate], request: RequestWork, rng: Random) -> Evaluation:
        """Score every candidate for `request`; `rng` is used only where something is unknown."""


def rank(evaluation: Evaluation, rotation: Rotation) -> list[int]:
    """Best candidates of an evaluation (not empty), the lowest total first, ties in the replica's rotation."""
    turn = rotation.turns(evaluation.instances)
    totals, instances = evaluation.totals, evaluation.instances
    return heapq.nsmallest(RANKED, range(len(instances)), key=lambda index: (totals[index], turn(instances[index])))


def select(
    strategy: Strategy, candidates: Sequence[Candidate], request: RequestWork, rng: Random, rotation: Rotation
) -> Choice:
    """Choose one of `candidates` (not empty) by this replica's own view, and say why; noted in `rotation`."""
    evaluation = strategy.evaluate(candidates, request, rng)
    choice = Choice(evaluation, rank(evaluation, rotation))
    rotation.note(choice.instance)
    return choice


def offers(choice: Choice, candidates: Sequence[Candidate]) -> list[Offer]:
    """Offers to the bus: the best candidates of a choice, with how their scores grow."""
    evaluation = choice.evaluation
    slopes = evaluation.slopes or ()
    return [
        Offer(
            evaluation.instances[index],
            evaluation.totals[index],
            slopes[index].per_token,
            slopes[index].per_request,
            candidates[index].in_transit_tokens,
            candidates[index].in_transit_requests,
        )
        for index in choice.ranking[:MOST_OFFERS]
    ]
