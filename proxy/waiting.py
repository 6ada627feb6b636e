"""Requests that have been sent and wait for their first event, by instance: so that they can be moved from outside.

The wait for an answer is cut off by ending the answer with a fault; whoever waits for it sees that fault.
"""

import asyncio
import math
import time

from bus.hop.answer import Answer
from bus.hop.errors import HopFailed


class Suspected(HopFailed):
    """The instance's worker does not answer: the request is tried elsewhere, and none of its tries is used up."""


class DeadlineExceeded(HopFailed):
    """The time that the client or the configuration gave the whole request is over; no instance is to blame."""


class Waiting:
    """All answers of a replica that have no first event yet."""

    def __init__(self) -> None:
        self._answers: dict[str, set[Answer]] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._answers.values()))

    def add(self, instance: str, answer: Answer) -> None:
        """A request was sent to the instance."""
        self._answers.setdefault(instance, set()).add(answer)

    def discard(self, instance: str, answer: Answer) -> None:
        """It waits no longer."""
        answers = self._answers.get(instance)
        if answers is not None:
            answers.discard(answer)
            if not answers:
                del self._answers[instance]

    def move(self, instance: str, fault: Suspected) -> int:
        """Cut off every wait there; the number of requests that it moves."""
        answers = self._answers.pop(instance, set())
        for answer in answers:
            answer.abort(fault)
        return len(answers)


class Attempt:
    """One request at one instance, from sending to its end: what may end it from outside.

    `deadline_s` is the end of the whole request's time on the monotonic clock, infinite where it has no limit.
    """

    def __init__(self, waiting: Waiting, instance: str, deadline_s: float) -> None:
        self._waiting = waiting
        self._instance = instance
        self._deadline_s = deadline_s
        self._answers: list[Answer] = []
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, answer: Answer) -> None:
        """The request has been written; again where an idle connection had to be replaced."""
        self._answers.append(answer)
        self._waiting.add(self._instance, answer)
        if self._timer is not None:
            self._timer.cancel()
        if self._deadline_s < math.inf:
            left_s = max(0.0, self._deadline_s - time.monotonic())
            fault = DeadlineExceeded("the request took longer than its time limit")
            self._timer = asyncio.get_running_loop().call_later(left_s, answer.abort, fault)

    def has_event(self) -> None:
        """The client sees the answer from now on: it is not to be moved any more. Its time limit holds on."""
        for answer in self._answers:
            self._waiting.discard(self._instance, answer)

    def end(self) -> None:
        """Nothing is to end it any more."""
        self.has_event()
        if self._timer is not None:
            self._timer.cancel()
