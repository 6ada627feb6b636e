"""A site: one engine with its queue worker in virtual time, and what the worker publishes.

The way of a request is that of workers/relay.py: accepted, a slot, the engine, first token, end. What the worker knows
is the project's own timeline; when it publishes is what bus/publisher.py does.
"""

import math
from collections import deque
from typing import Final, Protocol

from bus.publisher import COALESCE_S
from bus.registration import Registration
from bus.tokens import TokenRates
from deploy.engine.batching import EngineModel
from tests.routing.engine import JumpingEngine
from tests.routing.loop import Loop
from tests.routing.store import Reservation, Store
from workers.calibration import Calibration
from workers.engines import EngineLoad
from workers.estimates import RateMeter, RunningMean
from workers.pressure import make_record
from workers.timeline import Request, Stage, Timeline, Work

#: Defaults of workers/config.py: what a worker believes of an engine it has never seen work.
PRIOR_PREFILL_TOKENS_PER_S: Final = 4000.0
PRIOR_DECODE_STEP_S: Final = 0.030
PRIOR_OUTPUT_TOKENS: Final = 256.0

#: How often a worker reads its engine's metrics.
SCRAPE_S: Final = 0.5

#: From a worker's publish to the moment at which readers see it.
BUS_DELAY_S: Final = 0.0005


class Job:
    """One request on its way, and what became of it."""

    __slots__ = ("at_s", "end_s", "first_s", "index", "output_tokens", "prompt_tokens", "replica", "site")

    def __init__(self, index: int, at_s: float, prompt_tokens: int, output_tokens: int, replica: int) -> None:
        self.index = index
        self.at_s = at_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.replica = replica
        self.site = -1
        self.first_s = math.nan
        self.end_s = math.nan


class Listener(Protocol):
    """Who wants to know when a request has ended."""

    def ended(self, job: Job) -> None:
        """The last token of `job` has come."""


class Site:
    """Engine number `index`, its slots, and the requests that wait for one."""

    def __init__(self, loop: Loop, index: int, model: EngineModel, listener: Listener) -> None:
        self.index = index
        self.engine = JumpingEngine(model)
        self.queue: deque[Job] = deque()
        """Requests that wait in the worker for a slot."""
        self.on_engine = 0
        self.worker: Worker | None = None
        """None: nobody predicts anything here."""
        self._loop = loop
        self._listener = listener
        self._jobs: dict[int, Job] = {}
        self._planned_s = math.inf

    def accept(self, job: Job, reservation: Reservation | None = None) -> None:
        """A request has arrived at the worker."""
        job.site = self.index
        self._jobs[job.index] = job
        if self.worker is not None:
            self.worker.accepted(job, reservation)
        self.queue.append(job)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give free slots to those who wait, and the engine its next step."""
        engine, now = self.engine, self._loop.now
        while self.queue and self.on_engine < engine.model.max_num_seqs:
            job = self.queue.popleft()
            self.on_engine += 1
            engine.submit(job.index, job.prompt_tokens, job.output_tokens, now)
            if self.worker is not None:
                self.worker.reached(job, Stage.PREFILL)
        if engine.underway is None:
            engine.begin(now)
        if engine.ends_s != self._planned_s and engine.underway is not None:
            self._planned_s = engine.ends_s
            self._loop.at(self._planned_s, self._end_step, self._planned_s)

    def _end_step(self, planned_s: float) -> None:
        if planned_s != self._planned_s:
            return  # a request came and the run of steps was cut
        self._planned_s = math.inf
        now = self._loop.now
        first, finished = self.engine.end()
        for key in first:
            self._jobs[key].first_s = now
            if self.worker is not None:
                self.worker.reached(self._jobs[key], Stage.DECODE)
        for key in finished:
            job = self._jobs.pop(key)
            job.end_s = now
            self.on_engine -= 1
            if self.worker is not None:
                self.worker.finished(job)
            self._listener.ended(job)
        self._dispatch()


class Worker:
    """What the queue worker of a site knows, and publishes to the store."""

    def __init__(self, loop: Loop, site: Site, store: Store, registration: Registration) -> None:
        self.timeline = Timeline(
            slots=site.engine.model.max_num_seqs,
            calibration=Calibration(prefill_tokens_per_s=PRIOR_PREFILL_TOKENS_PER_S, decode_step_s=PRIOR_DECODE_STEP_S),
            output_tokens=RunningMean(PRIOR_OUTPUT_TOKENS),
        )
        self.predictions: list[tuple[Job, float]] = []
        """Each request with the time to first token that was predicted at acceptance."""
        self._loop = loop
        self._site = site
        self._store = store
        self._heartbeat_s = registration.heartbeat_ms / 1000
        self._load = EngineLoad()
        self._rate = RateMeter()
        self._requests: dict[int, Request] = {}
        self._arrived: list[Reservation] = []
        self._published_s = -math.inf
        self._is_publish_planned = False
        self._sequence = 0
        self._scrape()
        self._publish()
        loop.at(loop.now + self._heartbeat_s, self._beat)

    def accepted(self, job: Job, reservation: Reservation | None) -> None:
        """A request is in the queue."""
        now = self._loop.now
        request = self.timeline.accept(str(job.index), Work(job.prompt_tokens), now)
        self.timeline.advance(request, Stage.READY_QUEUE, now)
        self._requests[job.index] = request
        self.predictions.append((job, request.predicted_ttft_s))
        self._rate.count(now)
        if reservation is not None:
            self._arrived.append(reservation)
        self._changed()

    def reached(self, job: Job, stage: Stage) -> None:
        """A request has reached a further stage."""
        self.timeline.advance(self._requests[job.index], stage, self._loop.now)
        self._changed()

    def finished(self, job: Job) -> None:
        """A request has ended well."""
        request = self._requests.pop(job.index)
        self.timeline.finish(request, self._loop.now, output_tokens=job.output_tokens)
        self._changed()

    def _changed(self) -> None:
        """Publish soon, though no sooner than 20 ms after the last time."""
        if not self._is_publish_planned:
            self._is_publish_planned = True
            self._loop.at(max(self._loop.now, self._published_s + COALESCE_S), self._publish)

    def _publish(self) -> None:
        now = self._loop.now
        self._is_publish_planned = False
        self._published_s = now
        self._sequence += 1
        record = make_record(
            self.timeline,
            self._load,
            epoch=1,
            sequence=self._sequence,
            state_code=0,
            rate=self._rate,
            token_rates=TokenRates(),
            now=now,
        )
        arrived, self._arrived = self._arrived, []
        self._loop.at(now + BUS_DELAY_S, self._store.publish, self._site.index, record, arrived)

    def _beat(self) -> None:
        """Publish if nothing has changed for a heartbeat."""
        now = self._loop.now
        if now - self._published_s >= self._heartbeat_s - 1e-9 and not self._is_publish_planned:
            self._publish()
        self._loop.at(self._published_s + self._heartbeat_s, self._beat)

    def _scrape(self) -> None:
        """Read the engine's own metrics."""
        engine, model, now = self._site.engine, self._site.engine.model, self._loop.now
        self._load = EngineLoad(
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_tokens(now) / model.kv_capacity_tokens,
            kv_capacity_tokens=model.kv_capacity_tokens,
        )
        self._loop.at(now + SCRAPE_S, self._scrape)
