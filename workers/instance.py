"""One instance as its worker keeps it: the queue, the timeline, the watch on its engine, and what is published.

The ledger of requests is the timeline; this class is the thin shell that moves requests through it, tells the
publisher that something has changed, and answers why a request cannot be taken.
"""

import asyncio
import logging
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from bus.errors import ForebayError
from bus.hop.client import HopClient
from bus.hop.errors import HopFailed
from bus.hop.headers import DRAINING, FULL, RawHeaders, Ticket
from bus.hop.sse import Usage
from bus.hop.tracing import Tracer
from bus.publisher import Publisher
from bus.record import PressureRecord, state_code
from bus.registration import Registration, RegistrationState
from bus.scripts import Commands
from bus.seldom import Seldom
from bus.tokens import TextBytes
from workers.advice import Advice
from workers.calibration import Calibration
from workers.config import InstanceConfig, WorkerConfig
from workers.engine_health import EngineHealth
from workers.engine_watch import EngineWatch
from workers.estimates import RateMeter, RunningMean
from workers.gate import Gate
from workers.metrics import WorkerMetrics
from workers.models import Aliases
from workers.pressure import make_record
from workers.timeline import Request, Stage, Timeline, Work
from workers.token_rates import LearnedTokenRates
from workers.traces import Traces

log = logging.getLogger("forebay.worker")

#: Predictions kept for /debug/predictions.
PREDICTIONS_KEPT: Final = 2048


class Refused(ForebayError):
    """The instance does not take the request; with a `verdict` another one may."""

    def __init__(
        self, status: int, code: str, message: str, *, verdict: str | None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.verdict = verdict
        self.retry_after_s = retry_after_s


class Prediction(msgspec.Struct, frozen=True):
    """One request's time to first token: predicted before dispatch, and real. Seconds."""

    request: str
    predicted_ttft_s: float
    real_ttft_s: float


class Instance:
    """The queue of one engine."""

    def __init__(
        self,
        config: WorkerConfig,
        instance: InstanceConfig,
        *,
        bus: Commands,
        engine_headers: RawHeaders,
        engine_tls: ssl.SSLContext | None = None,
        metrics: WorkerMetrics,
        tracer: Tracer | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.id = instance.id
        self.config = config
        self.worker_url = ""
        """Known once the listener is bound."""
        self.engine = HopClient(instance.engine_url, connect_timeout_s=config.connect_timeout_ms / 1000, tls=engine_tls)
        self.engine_headers = engine_headers
        self.timeline = Timeline(
            slots=config.slots,
            calibration=Calibration(
                prefill_tokens_per_s=config.prior_prefill_tokens_per_s, decode_step_s=config.prior_decode_step_ms / 1000
            ),
            output_tokens=RunningMean(config.prior_output_tokens),
        )
        self.aliases = Aliases(config.alias)
        self.traces = Traces(tracer, instance.id) if tracer else None
        self.prepare_gate = Gate(config.prepare_concurrency)
        self.slot_gate = Gate(config.slots)
        self.predictions: deque[Prediction] = deque(maxlen=PREDICTIONS_KEPT)
        self.state: RegistrationState = "ready"
        self._engine_url = instance.engine_url
        self._clock = clock
        self._rate = RateMeter()
        self._repeats = 0
        self._advice = Advice(slots=config.slots)
        self._said: defaultdict[str, Seldom] = defaultdict(Seldom)
        self._estimates_fail = False
        self._token_rates = LearnedTokenRates()
        self.publisher = Publisher(
            bus,
            pool=config.pool,
            instance=instance.id,
            make_record=self._make_record,
            registration=self._registration,
            on_superseded=self.drain,
            registration_ttl_s=config.registration_ttl_s,
        )
        self.watch = EngineWatch(
            self.engine,
            name=instance.id,
            kind=config.engine_kind,
            headers=engine_headers,
            interval_s=config.scrape_interval_ms / 1000,
            on_change=self.publisher.announce,
            on_load=self._take_engine_load,
        )
        self.health = EngineHealth(
            self.engine,
            name=instance.id,
            headers=engine_headers,
            slots=self.slot_gate,
            limit_s=config.first_event_timeout_s,
            models=lambda: self.watch.models,
            on_change=self.publisher.changed,
            clock=clock,
        )
        self.metrics = metrics.instance(instance.id, inflight=lambda: len(self.timeline), publisher=self.publisher)
        self._idle = asyncio.Event()
        self._idle.set()

    # -- a request's way

    def accept(self, request_id: str, ticket: Ticket) -> Request:
        """Take a request into the queue. Raises Refused when draining or full."""
        if self.state != "ready":
            raise Refused(503, "instance_draining", f"instance {self.id} is draining", verdict=DRAINING)
        now = self._clock()
        if self.timeline.waiting >= self.config.queue_limit and self.timeline.places >= self.config.slots:
            message = f"the queue of instance {self.id} is full"
            place_s = self._place_s(now)
            raise Refused(429, "queue_full", message, verdict=FULL, retry_after_s=place_s)
        work = Work(ticket.tokens, ticket.output, ticket.is_stream, ticket.sequences)
        request = self._take_in(self._unique(request_id), work, now)
        self._rate.count(now)
        self.publisher.arrived(ticket.reservation)
        self._idle.clear()
        self.publisher.changed()
        return request

    def advance(self, request: Request, stage: Stage) -> None:
        """A request has reached a further stage."""
        now = self._clock()
        self.timeline.advance(request, stage, now)
        if self.traces is not None:
            self.traces.advance(request, stage)
        if stage is Stage.DECODE and request.predicted_ttft_s is not None:
            real_s = now - request.accepted_s
            self.predictions.append(Prediction(request.id, request.predicted_ttft_s, real_s))
            self.metrics.saw_ttft(real_s, request.predicted_ttft_s)
        self.publisher.changed()

    def finish(
        self, request: Request, outcome: str, *, usage: Usage | None = None, text: TextBytes | None = None
    ) -> None:
        """A request has left, whatever the way; the second time changes nothing."""
        try:
            is_gone = not self.timeline.finish(
                request,
                self._clock(),
                output_tokens=_each(usage.completion_tokens, request.work.sequences) if usage else None,
                prefilled_tokens=_uncached(usage) if usage else None,
                is_success=outcome == "answered",
            )
        except Exception as fault:
            is_gone = False  # it has left all the same; only nothing was learned from it
            self._estimate_failed(fault)
        if is_gone:
            return
        if usage is not None and usage.prompt_tokens:
            self._saw_usage(usage.prompt_tokens, usage, text)
        self.metrics.count(outcome)
        has_begun = request.work.is_stream and request.decode is not None
        self.health.saw(outcome, sent_s=request.dispatched_s, has_begun=has_begun)
        if self.traces is not None:
            self.traces.finish(request, outcome, usage.completion_tokens if usage else None)
        if not len(self.timeline):
            self._idle.set()
        self.publisher.changed()

    def say_failure(self, what: str, request: Request, fault: HopFailed) -> None:
        """Log what became of a request; of many that end alike one a minute, with their count."""
        if times := self._said[what].due(self._clock()):
            message = "instance %s: request %s %s: %s (%d such since last said)"
            log.warning(message, self.id, request.id, what, fault, times)

    # -- its life

    async def run(self) -> None:
        """Watch the engine and publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.publisher.run(), name=f"publish {self.id}")
            tasks.create_task(self.watch.run(), name=f"watch {self.id}")
            tasks.create_task(self.health.run(), name=f"health of {self.id}'s engine")

    def drain(self) -> None:
        """Take nothing new; what runs goes on."""
        if self.state == "ready":
            self.state = "draining"
            self.publisher.announce()

    async def drained(self) -> None:
        """Wait until nothing runs."""
        await self._idle.wait()

    async def withdraw(self) -> None:
        """Tell the bus that the instance is gone."""
        self.state = "gone"
        await self.publisher.withdraw(self._registration())
        self.engine.close()

    # -- what is published

    def _make_record(self, epoch: int, sequence: int) -> PressureRecord:
        """The record; where an estimate of ours fails, one that says only what needs none: the queue must go on."""
        try:
            record = self._whole_record(epoch, sequence)
        except Exception as fault:
            self._estimate_failed(fault)
            return PressureRecord(
                epoch=epoch, sequence=sequence, state_code=self._state_code, inflight=len(self.timeline)
            )
        self._estimates_fail = False
        return record

    def _take_in(self, request_id: str, work: Work, now: float) -> Request:
        """Take a request in, with its prediction where there is one: an estimate that fails costs no request."""
        try:
            return self.timeline.accept(request_id, work, now)
        except Exception as fault:
            self._estimate_failed(fault)
            return self.timeline.accept(request_id, work, now, predicts=False)

    def _place_s(self, now: float) -> float | None:
        """Time until one more could be taken in, as predicted."""
        try:
            return self.timeline.plan(now).next_slot_ready_s / (self.timeline.waiting + 1)
        except Exception as fault:
            self._estimate_failed(fault)
            return None

    def _estimate_failed(self, fault: Exception) -> None:
        if not self._estimates_fail:
            message = "instance %s: a fault of ours in its estimates; what needs them is unknown"
            log.error(message, self.id, exc_info=fault)
        self._estimates_fail = True

    def _whole_record(self, epoch: int, sequence: int) -> PressureRecord:
        return make_record(
            self.timeline,
            self.watch.load,
            epoch=epoch,
            sequence=sequence,
            state_code=self._state_code,
            rate=self._rate,
            token_rates=self._token_rates.rates,
            now=self._clock(),
        )

    @property
    def _state_code(self) -> int:
        return state_code("draining" if self.state != "ready" else "failing" if self.health.is_failing else "ready")

    def _registration(self) -> Registration:
        return Registration(
            worker_url=self.worker_url,
            engine_url=self._engine_url,
            models=self.aliases.beside(self.watch.models),
            kind=self.watch.adapter.kind if self.watch.adapter else "unknown",
            slots=self.config.slots,
            queue_limit=self.config.queue_limit,
            context_tokens=self.watch.context_tokens,
            state=self.state,
            ttl_ms=self.config.ttl_ms,
        )

    def _take_engine_load(self) -> None:
        """Requests that the engine runs beyond ours hold slots. Its gauge lags behind its steps: ours lead."""
        load = self.watch.load
        self._advise(self._advice.saw_load(self._clock(), load, queued=self.timeline.count(Stage.READY_QUEUE)))
        running = load.running
        foreign = max(0, running - self.timeline.sequences_on_engine) if running is not None else 0
        if foreign != self.timeline.foreign:
            self.timeline.foreign = foreign
            self.publisher.changed()

    def _saw_usage(self, prompt_tokens: int, usage: Usage, text: TextBytes | None) -> None:
        """The engine has counted a prompt, of `text` where the whole of it was text."""
        if text is not None:
            self._token_rates.learn(text, prompt_tokens)
        if usage.is_of_completion:
            self._advise(self._advice.saw_completion(usage.cached_tokens))

    def _advise(self, words: str | None) -> None:
        if words is not None:
            log.warning("instance %s: %s", self.id, words)

    def _unique(self, request_id: str) -> str:
        """A client may send one id any number of times; the ledger needs as many."""
        unique = request_id
        while unique in self.timeline:
            self._repeats += 1
            unique = f"{request_id}#{self._repeats}"
        return unique


def _each(tokens: int | None, sequences: int) -> int | None:
    """Tokens of one answer of several."""
    return None if tokens is None else round(tokens / sequences)


def _uncached(usage: Usage) -> int | None:
    """Prompt tokens that the engine's prefix cache did not hold."""
    if usage.prompt_tokens is None:
        return None
    return max(0, usage.prompt_tokens - (usage.cached_tokens or 0))
