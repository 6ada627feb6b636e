"""A worker and its engine in virtual time: the timeline against the simulated engine's own batcher, no clock, no sleep."""

import csv
import heapq
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.engine.batching import Batcher, EngineModel
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
    from datetime import datetime

    arrivals: list[Arrival] = []
    with (TRACES / "AzureLLMInferenceTrace_conv.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            start_s = arrivals[0].at_s if False else None
            arrivals.append(Arrival(at_s, int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))))
            if len(arrivals) == limit:
                break
    start_s = arrivals[0].at_s
    return [msgspec.structs.replace(arrival, at_s=arrival.at_s - start_s) for arrival in arrivals]


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


def play(timeline: Timeline, arrivals: Sequence[Arrival], model: EngineModel, *, is_stream: bool = True) -> list[Prediction]:
    """Serve all arrivals through a queue of `timeline.slots` slots and an engine; one prediction a request, in order."""
    batcher = Batcher[int](model)
    requests: dict[int, Request] = {}
    ready: deque[int] = deque()
    predictions: dict[int, Prediction] = {}
    coming = deque(enumerate(arrivals))
    step_end_s, step = float("inf"), None

    def dispatch(now: float) -> None:
        nonlocal step, step_end_s
        while ready and timeline.on_engine < timeline.slots:
            index = ready.popleft()
            timeline.advance(requests[index], Stage.PREFILL, now)
            arrival = arrivals[index]
            batcher.submit(index, prompt_tokens=arrival.prompt_tokens, max_tokens=arrival.output_tokens, now=now)
        if step is None and (step := batcher.step(now)) is not None:
            step_end_s = now + step.duration_s

    while coming or len(timeline):
        if coming and coming[0][1].at_s <= step_end_s:
            index, arrival = coming.popleft()
            now = arrival.at_s
            requests[index] = timeline.accept(str(index), Work(arrival.prompt_tokens, None, is_stream), now)
            timeline.advance(requests[index], Stage.READY_QUEUE, now)
            ready.append(index)
        else:
            now = step_end_s
            assert step is not None
            for index in step.first:
                request = requests[index]
                predictions[index] = Prediction(request.predicted_ttft_s, now - request.accepted_s)
                if is_stream:
                    timeline.advance(request, Stage.DECODE, now)
            for index in step.finished:
                timeline.finish(requests[index], now, output_tokens=arrivals[index].output_tokens)
            step, step_end_s = None, float("inf")
        dispatch(now)
    return [predictions[index] for index in sorted(predictions)]
