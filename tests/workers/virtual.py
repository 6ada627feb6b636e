"""A worker and its engine in virtual time: the timeline against the simulated engine's own batcher."""

import csv
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

from deploy.engine.batching import Batcher, EngineModel, Step
from workers.timeline import Request, Stage, Timeline, Work

TRACES = Path(__file__).parent.parent / "data" / "traces"


class Arrival(msgspec.Struct, frozen=True):
    """One request of a trace: when it comes (seconds), its prompt and what it will really produce (tokens)."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Prediction(msgspec.Struct, frozen=True):
    """What was predicted at acceptance and what came, seconds."""

    predicted_ttft_s: float
    real_ttft_s: float

    @property
    def error(self) -> float:
        """|predicted - real| / real."""
        return abs(self.predicted_ttft_s - self.real_ttft_s) / self.real_ttft_s


def azure_conversation(limit: int) -> list[Arrival]:
    """The first `limit` rows of the Azure conversation trace, times from 0."""
    with (TRACES / "AzureLLMInferenceTrace_conv.csv").open(newline="") as lines:
        rows = list(islice(csv.DictReader(lines), limit))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Arrival((at - times[0]).total_seconds(), int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"])))
        for at, row in zip(times, rows, strict=True)
    ]


def capacity_s(arrivals: Sequence[Arrival], model: EngineModel) -> float:
    """Seconds that the engine needs for all of them when they wait at its door: its capacity."""
    batcher = Batcher[int](model)
    for index, arrival in enumerate(arrivals):
        batcher.submit(index, prompt_tokens=arrival.prompt_tokens, max_tokens=arrival.output_tokens, now=0.0)
    now = 0.0
    while (step := batcher.step(now)) is not None:
        now += step.duration_s
    return now


def at_load(arrivals: Sequence[Arrival], model: EngineModel, load: float) -> list[Arrival]:
    """The same requests, their times stretched so that the engine is busy `load` of the time."""
    factor = capacity_s(arrivals, model) / load / arrivals[-1].at_s
    return [msgspec.structs.replace(arrival, at_s=arrival.at_s * factor) for arrival in arrivals]


class Play:
    """Serves all arrivals through a queue of `timeline.slots` slots and an engine."""

    def __init__(
        self, timeline: Timeline, arrivals: Sequence[Arrival], model: EngineModel, *, is_stream: bool = True
    ) -> None:
        self._timeline = timeline
        self._arrivals = arrivals
        self._is_stream = is_stream
        self._batcher = Batcher[int](model)
        self._requests: dict[int, Request] = {}
        self._ready: deque[int] = deque()
        self._predictions: dict[int, Prediction] = {}
        self._step: Step[int] | None = None
        self._step_end_s = float("inf")

    def predictions(self) -> list[Prediction]:
        """Play it all; one prediction a request, in order of arrival."""
        coming = deque(enumerate(self._arrivals))
        while coming or len(self._timeline):
            if coming and coming[0][1].at_s <= self._step_end_s:
                index, arrival = coming.popleft()
                now = arrival.at_s
                self._accept(index, now)
            else:
                now = self._step_end_s
                self._end_step(now)
            self._dispatch(now)
        return [self._predictions[index] for index in sorted(self._predictions)]

    def _accept(self, index: int, now: float) -> None:
        work = Work(self._arrivals[index].prompt_tokens, None, self._is_stream)
        self._requests[index] = request = self._timeline.accept(str(index), work, now)
        self._timeline.advance(request, Stage.READY_QUEUE, now)
        self._ready.append(index)

    def _end_step(self, now: float) -> None:
        assert self._step is not None
        for index in self._step.first:
            request = self._requests[index]
            self._predictions[index] = Prediction(request.predicted_ttft_s, now - request.accepted_s)
            if self._is_stream:
                self._timeline.advance(request, Stage.DECODE, now)
        for index in self._step.finished:
            self._timeline.finish(self._requests[index], now, output_tokens=self._arrivals[index].output_tokens)
        self._step, self._step_end_s = None, float("inf")

    def _dispatch(self, now: float) -> None:
        while self._ready and self._timeline.on_engine < self._timeline.slots:
            index = self._ready.popleft()
            arrival = self._arrivals[index]
            self._timeline.advance(self._requests[index], Stage.PREFILL, now)
            self._batcher.submit(index, prompt_tokens=arrival.prompt_tokens, max_tokens=arrival.output_tokens, now=now)
        if self._step is None and (step := self._batcher.step(now)) is not None:
            self._step, self._step_end_s = step, now + step.duration_s
