"""Policies to compare with: they share no code with the project's timeline, calibration and strategies."""

from collections.abc import Sequence
from typing import Final, Protocol

from tests.routing.loop import Loop
from tests.routing.site import Job, Site

#: From a choice to its delivery, as for the project's own replicas.
DELIVERY_DELAY_S: Final = 0.001


class Policy(Protocol):
    """Decides for each request."""

    def arrived(self, job: Job) -> None:
        """A request has come to its replica."""

    def ended(self, job: Job) -> None:
        """The last token of a request has come."""


class RoundRobin:
    """Each replica deals in turn, from a place of its own."""

    def __init__(self, loop: Loop, sites: Sequence[Site], *, replicas: int) -> None:
        self._loop = loop
        self._sites = sites
        self._turns = [replica * len(sites) // replicas for replica in range(replicas)]

    def arrived(self, job: Job) -> None:
        """Deal the request."""
        turn = self._turns[job.replica]
        self._turns[job.replica] = turn + 1
        self._loop.at(self._loop.now + DELIVERY_DELAY_S, self._sites[turn % len(self._sites)].accept, job)

    def ended(self, job: Job) -> None:
        """Nothing is counted here."""


class FewestInFlight:
    """The instance with the fewest requests in flight by a counter: one for each replica, or one that sees all."""

    def __init__(self, loop: Loop, sites: Sequence[Site], *, replicas: int, is_all_seeing: bool) -> None:
        self._loop = loop
        self._sites = sites
        self._is_all_seeing = is_all_seeing
        self._counts = [[0] * len(sites) for _ in range(1 if is_all_seeing else replicas)]
        self._turns = list(range(replicas))

    def arrived(self, job: Job) -> None:
        """Choose the fewest, ties in the replica's turn."""
        counts, size = self._of(job), len(self._sites)
        turn = self._turns[job.replica]
        chosen = min(range(size), key=lambda site: (counts[site], (site - turn) % size))
        self._turns[job.replica] = chosen + 1
        counts[chosen] += 1
        self._loop.at(self._loop.now + DELIVERY_DELAY_S, self._sites[chosen].accept, job)

    def ended(self, job: Job) -> None:
        """Count it no more."""
        self._of(job)[job.site] -= 1

    def _of(self, job: Job) -> list[int]:
        return self._counts[0 if self._is_all_seeing else job.replica]


class AllKnowing:
    """The instance with the least time to first token, by the exact state of every engine at this very moment.

    It knows of each engine what is left of its step, the prompt tokens ahead, the slots and the batch; of answers only
    how long they are on average. Choice and delivery take no time.
    """

    def __init__(self, loop: Loop, sites: Sequence[Site], *, mean_output_tokens: float) -> None:
        self._loop = loop
        self._sites = sites
        self._mean_output_tokens = mean_output_tokens
        self._turn = 0

    def arrived(self, job: Job) -> None:
        """Choose and deliver at once."""
        self._turn += 1
        size = len(self._sites)
        chosen = min(
            range(size),
            key=lambda site: (self.ttft_s(self._sites[site], job.prompt_tokens), (site - self._turn) % size),
        )
        self._sites[chosen].accept(job)

    def ended(self, job: Job) -> None:
        """Nothing is counted here."""

    def ttft_s(self, site: Site, prompt_tokens: int) -> float:
        """Time to the first token of a prompt that arrives at a site now."""
        engine, model = site.engine, site.engine.model
        decoding = engine.decoding
        ahead = engine.unfinished_prefill_tokens + sum(job.prompt_tokens for job in site.queue)
        tokens = ahead + prompt_tokens
        steps = -(-tokens // max(1, model.token_budget - decoding))
        work_ms = steps * (model.step_base_ms + decoding * model.decode_ms_per_seq)
        work_ms += tokens * model.prefill_ms_per_token
        wait_ms = 0.0
        behind = site.on_engine + len(site.queue) - model.max_num_seqs
        if behind >= 0:  # so many and one more must end before this one gets a slot: each step ends one in 1 / mean
            step_ms = model.step_base_ms + model.max_num_seqs * model.decode_ms_per_seq
            wait_ms = (behind + 1) * self._mean_output_tokens / model.max_num_seqs * step_ms
        return engine.step_left_s(self._loop.now) + (work_ms + wait_ms) / model.speed / 1000
