"""The rival policies of the simulation in real time: the same objects, for which a decision is carried out at once.

The simulation's policies plan their deliveries on a loop of virtual time; here the loop is the event loop's clock, and
what is planned happens immediately: the way that a request takes is real.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from deploy.engine.batching import EngineModel
from deploy.engine.stepping import StepLoop
from tests.routing.site import Job


class Immediately:
    """A loop whose time is the event loop's, and which plans nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def now(self) -> float:
        """Seconds of the event loop."""
        return self._loop.time()

    def at(self, _: float, action: Callable[..., None], *args: Any) -> None:
        """Do it."""
        action(*args)


class Place:
    """A site of which nothing is known but its number: whom it accepts, it marks."""

    def __init__(self, index: int) -> None:
        self.index = index

    def accept(self, job: Job) -> None:
        """The request goes here."""
        job.site = self.index


class EngineView:
    """An engine that runs in this very process, as the all-knowing router looks at it: its batcher, now."""

    def __init__(self, steps: StepLoop) -> None:
        self._steps = steps

    @property
    def model(self) -> EngineModel:
        """How fast it is."""
        return self._steps.batcher.model

    @property
    def decoding(self) -> int:
        """Sequences that decode in the next step, those that end with this one left out."""
        return sum(not sequence.to_prefill and sequence.left > 0 for sequence in self._steps.batcher._running)

    @property
    def unfinished_prefill_tokens(self) -> int:
        """Prompt tokens that no step has taken yet, in the batch and waiting."""
        return self._steps.batcher.backlog_tokens

    def step_left_s(self, now: float) -> float:
        """Seconds until the next step can begin."""
        return max(0.0, self._steps._ends_at_s - now) if self._steps._step is not None else 0.0


class KnownSite(Place):
    """A site of which everything is known."""

    queue: Sequence[Job] = ()
    """Nobody waits outside the engine."""

    def __init__(self, index: int, steps: StepLoop) -> None:
        super().__init__(index)
        self.engine = EngineView(steps)
        self._batcher = steps.batcher

    @property
    def on_engine(self) -> int:
        """Requests that run or wait in the engine."""
        return self._batcher.running + self._batcher.waiting


def job_of(prompt_tokens: int, *, replica: int = 0) -> Job:
    """A request as the policies know it: how long its answer will be, nobody tells them."""
    return Job(0, 0.0, prompt_tokens, 0, replica)
