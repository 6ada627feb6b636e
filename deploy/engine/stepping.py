"""The batcher in real time: begins steps, and hands out their tokens when they end. No HTTP.

Steps follow an absolute schedule: the next one begins where the last one should have ended, so that the event loop's
delays do not add up. Nothing is scheduled while there is nothing to do.
"""

import asyncio
from typing import Final

from deploy.engine.batching import Batcher, EngineModel, QueueFull, Step
from deploy.engine.exchange import Choice
from deploy.engine.intake import Asked
from deploy.engine.metrics import Counters

# A machine that is later than this does not catch up: the time is given up, and counted as slip.
LATENESS_LIMIT_S: Final = 0.1


class StepLoop:
    """Owner of a batcher; every method runs in the thread of `loop`, whose clock and timers it uses."""

    def __init__(self, model: EngineModel, counters: Counters, loop: asyncio.AbstractEventLoop) -> None:
        self.batcher = Batcher[Choice](model)
        self._counters = counters
        self._loop = loop
        self._step: Step[Choice] | None = None
        self._handle: asyncio.Handle | None = None
        self._ends_at_s = 0.0

    def submit(self, asked: Asked, choices: list[Choice]) -> None:
        """Queue a request's answers, all or none. Raises QueueFull."""
        now = self._loop.time()
        try:
            for choice in choices:
                prompt = asked.prompts[choice.index // asked.n]
                self.batcher.submit(choice, prompt.tokens, asked.max_tokens, now)
        except QueueFull:
            self._counters.rejected += 1
            for choice in choices:
                self.batcher.abort(choice)
            raise
        if self._handle is None:
            # Not at once: what arrives in the same turn of the loop shares the step.
            self._handle = self._loop.call_soon(self._begin_now)

    def abort(self, choices: list[Choice]) -> None:
        """Drop what is left of a request; nothing happens if it has finished."""
        aborted = [self.batcher.abort(choice) for choice in choices if choice.tokens < choice.max_tokens]
        self._counters.aborted += any(aborted)

    def stop(self) -> None:
        """Produce nothing any more; requests under way wait until their connections end."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _begin_now(self) -> None:
        self._begin(self._loop.time())

    def _begin(self, now: float) -> None:
        step = self._step = self.batcher.step(now)
        if step is None:
            self._handle = None
            return
        self._ends_at_s = now + step.duration_s
        self._handle = self._loop.call_at(self._ends_at_s, self._end)

    def _end(self) -> None:
        step = self._step
        if step is None:
            return
        counters = self._counters
        counters.steps += 1
        counters.generation_tokens += len(step.produced)
        counters.prompt_tokens += step.prefill_tokens
        for choice in step.produced:
            choice.advance()
        late_s = self._loop.time() - self._ends_at_s
        if late_s > LATENESS_LIMIT_S:
            counters.slip_s += late_s
            self._ends_at_s += late_s
        self._begin(self._ends_at_s)
