"""In-transit arithmetic: what reservations do to the scores of those who choose at the same time. No Redis, no clock.

A replica sends its best candidates as offers: the score it computed, the in-transit sums that it saw, and how the score
grows with them. Where the choice is made (bus/lua/reserve.lua, in one step for all replicas) the sums are those of that
very moment, so a score becomes

    fresh score = score + per_token * (tokens now - tokens seen) + per_request * (requests now - requests seen)

and the first of the lowest wins; the offers come in the replica's own tie order.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

#: Most offers of one choice: the best of hundreds of instances are among a replica's own best few.
MOST_OFFERS: Final = 16

#: Life of a reservation: far longer than a delivery and a publish take, and how long a lost one may be counted.
GRACE_MS: Final = 2000

#: A choice whose view is older than this, in server time, when it is made, is not made: it comes too late to be heard.
OLDEST_VIEW_US: Final = 250_000


class Offer(msgspec.Struct, frozen=True):
    """One candidate of a choice."""

    instance: str
    score: float
    per_token: float
    """Growth of the score for one more token in transit."""
    per_request: float
    """Growth of the score for one more request in transit."""
    tokens_seen: int
    """Tokens in transit that are in `score` already."""
    requests_seen: int


class InTransit(msgspec.Struct, frozen=True):
    """Reserved at one instance, and in no record yet."""

    tokens: int = 0
    requests: int = 0


class Reserved(msgspec.Struct, frozen=True):
    """A choice as it was made: which offer, and all of them with the numbers of that moment."""

    index: int
    scores: Sequence[float]
    sums: Sequence[InTransit]


def fresh_score(offer: Offer, now: InTransit) -> float:
    """Score of an offer with what is in transit now.

    >>> fresh_score(Offer("a", 1.5, 0.001, 0.25, tokens_seen=100, requests_seen=1), InTransit(1100, 3))
    3.0
    """
    tokens, requests = now.tokens - offer.tokens_seen, now.requests - offer.requests_seen
    return offer.score + offer.per_token * tokens + offer.per_request * requests


def choose(offers: Sequence[Offer], sums: Sequence[InTransit]) -> Reserved:
    """Choice among offers (not empty), each with what is in transit to it now.

    >>> offers = [Offer("a", 1.0, 0.0, 1.0, 0, 0), Offer("b", 1.0, 0.0, 1.0, 0, 0)]
    >>> choose(offers, [InTransit(10, 1), InTransit()]).index
    1
    """
    scores = [fresh_score(offer, now) for offer, now in zip(offers, sums, strict=True)]
    return Reserved(scores.index(min(scores)), scores, sums)
