"""One block replayed to one policy: every request sent when it is due, and what became of each, by its number.

Open loop, with the client of `forebay replay`. How late the client itself was is part of the outcome.
"""

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import msgspec

from deploy.replay.client import ReplayClient, Target
from deploy.replay.outcome import Outcome
from tests.routing.load import Arrival
from tests.routing.processes.wire import Bodies

_EARLY_S: Final = 0.0005  # uvloop's timers have whole milliseconds: half of one early is on time


class Shot(msgspec.Struct, frozen=True):
    """One request, seconds; a request that was given up has waited at least so long for what did not come."""

    number: int
    lag_s: float
    ttft_s: float
    e2e_s: float
    tpot_s: float
    failure: str | None = None
    """Why it failed, `unfinished` for a request that was given up; None: it was answered."""


class _Numbered(ReplayClient):
    """The replay client, which here also remembers whose outcome is whose."""

    def __init__(self, targets: list[Target], *, timeout_s: float) -> None:
        super().__init__(targets, self._note, timeout_s=timeout_s)
        self.outcomes: dict[int, Outcome] = {}
        self.sent: dict[int, tuple[float, float]] = {}
        """When each request was sent (`perf_counter`), and its lag; seconds."""
        self._numbers: dict[int, int] = {}  # by the identity of its body, which lives as long as the request
        self._ended = 0

    def send(self, number: int, body: bytes, *, due_s: float) -> None:
        self._numbers[id(body)] = number
        self.sent[number] = (perf_counter(), self.start(body, due_s=due_s))

    def _over(self, job: Any) -> None:
        self._ended = self._numbers.pop(id(job.exchange.request[1]))
        super()._over(job)

    def _note(self, outcome: Outcome) -> None:
        self.outcomes[self._ended] = outcome


async def replay(
    block: Sequence[tuple[int, Arrival]], urls: Sequence[str], bodies: Bodies, *, patience_s: float
) -> list[Shot]:
    """Send a block round robin over `urls`; what is not over `patience_s` after the last request is given up."""
    client = _Numbered([Target(url) for url in urls], timeout_s=3600.0)
    begin_s = block[0][1].at_s
    zero_s = perf_counter() + 0.1
    try:
        for number, arrival in block:
            body = bodies.body(number, arrival.prompt_tokens, arrival.output_tokens)
            due_s = zero_s + arrival.at_s - begin_s
            wait_s = due_s - perf_counter()
            if wait_s > _EARLY_S:
                await asyncio.sleep(wait_s)
            client.send(number, body, due_s=due_s)
        try:
            async with asyncio.timeout(patience_s):
                await client.drained()
        except TimeoutError:
            pass
        now = perf_counter()
    finally:
        await client.close()
    return [_shot(number, client, now) for number, _ in block]


def _shot(number: int, client: _Numbered, now: float) -> Shot:
    sent_s, lag_s = client.sent[number]
    outcome = client.outcomes.get(number)
    if outcome is None:
        waited_s = now - sent_s
        return Shot(number, lag_s, waited_s, waited_s, 0.0, "unfinished")
    ttft_s = outcome.e2e_s if outcome.ttft_s is None else outcome.ttft_s
    failure = outcome.failure.kind if outcome.failure else None
    return Shot(number, lag_s, ttft_s, outcome.e2e_s, outcome.tpot_s or 0.0, failure)
