"""What a choice is made from and what it leaves behind: candidates, the request's work, the evaluation, the choice.

Values only: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from operator import mul
from typing import Literal

import msgspec

from bus.in_transit import Reserved
from bus.tokens import TextBytes
from bus.view import Pressure

Tier = Literal["measured", "in_flight", "round_robin"]
"""How much was known: signals; only this replica's own counts; nothing."""

Source = Literal["record", "own", "imputed"]


class RequestWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of an engine, as far as the proxy can see."""

    prompt_tokens: int
    text: TextBytes | None = None
    """Prompt text that `prompt_tokens` was estimated from; None: it was counted, or there is more than text."""
    sequences: int = 1
    """Answers that run at once on the engine."""
    output_cap: int | None = None
    is_stream: bool = False


class Candidate(msgspec.Struct, frozen=True):
    """One instance that could answer a request."""

    instance: str
    pressure: Pressure
    own_inflight: int | None
    """Requests that this replica has sent there and not seen end; None: not counted."""

    @property
    def in_transit_tokens(self) -> int:
        """Tokens that replicas have reserved there and no record shows yet."""
        return self.pressure.in_transit_tokens

    @property
    def in_transit_requests(self) -> int:
        """Requests that replicas have reserved there and no record shows yet."""
        return self.pressure.in_transit_requests


class Slopes(msgspec.Struct, frozen=True):
    """How a candidate's total grows with what is in transit to it, at the sums that were seen."""

    per_token: float = 0.0
    per_request: float = 0.0


class Evaluation(msgspec.Struct, frozen=True):
    """Every candidate's score with all that went into it; the lists run parallel to `instances`."""

    strategy: str
    tier: Tier
    instances: Sequence[str]
    terms: Sequence[str]
    """What the total is the weighted sum of: signals, or costs in seconds made of them."""
    weights: Sequence[float]
    values: Sequence[Sequence[float]]
    """For each candidate, one value a term, in the order of `terms`."""
    totals: Sequence[float]
    imputed: Mapping[int, Mapping[str, str]]
    """Candidate index → signal → instance whose value stands in."""
    slopes: Sequence[Slopes] | None = None
    """One for each candidate; None: what is in transit does not matter to this strategy."""
    ttft_s: Sequence[float] | None = None
    """Predicted time to first token at each candidate, where the strategy predicts one."""

    def contributions(self, index: int) -> list[float]:
        """What each term adds to a candidate's total; their sum is the total."""
        return contributions(self.values[index], self.weights)

    def source(self, index: int, signal: str) -> Source:
        """Where the value of a signal comes from."""
        if signal in self.imputed.get(index, {}):
            return "imputed"
        return "record" if self.tier == "measured" else "own"


def of_terms(
    strategy: str,
    tier: Tier,
    instances: Sequence[str],
    terms: Sequence[str],
    weights: Sequence[float],
    values: Sequence[Sequence[float]],
    imputed: Mapping[int, Mapping[str, str]],
    *,
    slopes: Sequence[Slopes] | None = None,
    ttft_s: Sequence[float] | None = None,
) -> Evaluation:
    """Evaluation whose totals are the weighted sums of `values`."""
    totals = [sum(map(mul, row, weights)) for row in values]  # the sum of `contributions`, without the list
    return Evaluation(strategy, tier, instances, terms, weights, values, totals, imputed, slopes, ttft_s)


class Choice(msgspec.Struct, frozen=True):
    """The instance chosen, and why."""

    evaluation: Evaluation
    ranking: Sequence[int]
    """The best candidates by the view this replica had, the best first, ties in its own rotation."""
    reserved: Reserved | None = None
    """What the bus made of the first of them, with what all replicas had reserved by then; None: decided alone."""

    @property
    def index(self) -> int:
        """The candidate chosen."""
        return self.ranking[self.reserved.index if self.reserved else 0]

    @property
    def instance(self) -> str:
        """The instance chosen."""
        return self.evaluation.instances[self.index]

    @property
    def runner_up(self) -> int | None:
        """The best of the others; None if there is none."""
        others = [place for place in range(len(self.ranking)) if self.ranking[place] != self.index]
        return self.ranking[min(others, key=self._score_at)] if others else None

    def score(self, index: int) -> float:
        """Score by which a candidate was compared: with the sums of the moment of the choice, where the bus made it."""
        if self.reserved is not None and index in self.ranking[: len(self.reserved.scores)]:
            return self.reserved.scores[self.ranking.index(index)]
        return self.evaluation.totals[index]

    @property
    def margin(self) -> float | None:
        """By how much the runner-up is worse; 0 for a tie."""
        return None if self.runner_up is None else self.score(self.runner_up) - self.score(self.index)

    def _score_at(self, place: int) -> tuple[bool, float]:
        """Sort key of a place of the ranking: those that the bus compared come first."""
        is_compared = self.reserved is None or place < len(self.reserved.scores)
        return not is_compared, self.score(self.ranking[place])


def contributions(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted values, signal by signal.

    >>> contributions([2.0, 1000.0], [1.0, 0.001])
    [2.0, 1.0]
    """
    return [value * weight for value, weight in zip(values, weights, strict=True)]
