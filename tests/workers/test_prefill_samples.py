"""Pieces of prefill: what is read late, or in another order, does not make an engine look faster than it is."""

import pytest

from deploy.engine.batching import EngineModel
from workers.calibration import Calibration
from workers.estimates import RunningMean
from workers.prefill_samples import PrefillSamples
from workers.timeline import Request, Stage, Timeline, Work

MODEL = EngineModel()


def prefill_s(tokens: int) -> float:
    """What the simulated engine takes for a prompt, alone: steps of 2 048 tokens."""
    steps = -(-tokens // MODEL.token_budget)
    return (steps * MODEL.step_base_ms + tokens * MODEL.prefill_ms_per_token) / 1000


def dispatched(timeline: Timeline, name: str, tokens: int, now: float) -> Request:
    """A streamed request that the engine has got."""
    request = timeline.accept(name, Work(tokens), now)
    timeline.advance(request, Stage.PREFILL, now)
    return request


def settled() -> Timeline:
    """A timeline that has learned the engine from prompts of up to 3 000 tokens."""
    calibration = Calibration(prefill_tokens_per_s=4000.0, decode_step_s=0.010)
    for number in range(200):
        tokens = 50 + number * 37 % 3000
        calibration.learn_prefill(tokens, prefill_s(tokens))
    return Timeline(slots=16, calibration=calibration, output_tokens=RunningMean(200.0))


@pytest.mark.parametrize("is_short_read_first", [True, False])
def test_a_short_prompt_read_before_the_long_one_whose_last_step_it_shared(is_short_read_first):
    """30 000 tokens on an idle engine, 100 tokens that came 50 ms before their end: the speed stays as it was."""
    timeline = settled()
    before = timeline.calibration.prefill_tokens_per_s
    end_s = prefill_s(30_100)
    long = dispatched(timeline, "long", 30_000, 0.0)
    short = dispatched(timeline, "short", 100, end_s - 0.05)
    for request in (short, long) if is_short_read_first else (long, short):
        timeline.advance(request, Stage.DECODE, end_s)
    for request in (short, long):
        timeline.finish(request, end_s + 2.0, output_tokens=100)
    assert timeline.calibration.prefill_samples == 201
    assert timeline.calibration.prefill_tokens_per_s == pytest.approx(before, rel=0.02)


def test_a_short_prompt_that_overtakes_a_long_one_is_learned_with_it():
    """An engine that fits a short prompt in between: both were prefilled in the time of the long one."""
    timeline = settled()
    before = timeline.calibration.prefill_tokens_per_s
    long = dispatched(timeline, "long", 30_000, 0.0)
    short = dispatched(timeline, "short", 100, 1.0)
    timeline.advance(short, Stage.DECODE, 3.0)
    timeline.finish(short, 3.2, output_tokens=10)
    timeline.advance(long, Stage.DECODE, prefill_s(30_100))
    timeline.finish(long, 6.0, output_tokens=100)
    assert timeline.calibration.prefill_samples == 201
    assert timeline.calibration.prefill_tokens_per_s == pytest.approx(before, rel=0.02)


def test_one_prompt_of_thirty_thousand_tokens_on_an_engine_nobody_knows():
    """The very first request is ten times as long as any other: the speed is between the prior and the truth."""
    timeline = Timeline(
        slots=16,
        calibration=Calibration(prefill_tokens_per_s=4000.0, decode_step_s=0.010),
        output_tokens=RunningMean(200.0),
    )
    long = dispatched(timeline, "long", 30_000, 0.0)
    timeline.advance(long, Stage.DECODE, prefill_s(30_000))
    timeline.finish(long, 6.0, output_tokens=100)
    assert 4000 < timeline.calibration.prefill_tokens_per_s < 8100


def test_what_was_prefilled_in_the_time_of_a_prompt_that_left_teaches_nothing():
    """The first of the line is cancelled after a shorter one overtook it: nobody knows what was done of it."""
    learned: list[tuple[float, float]] = []
    samples = PrefillSamples(lambda tokens, seconds: learned.append((tokens, seconds)))
    overtaker = samples.first_token(dispatched_s=1.0, alone_since_s=0.0, now=2.0, is_head=False)
    samples.head_left()
    samples.settle(overtaker, 100)
    piece = samples.first_token(dispatched_s=2.5, alone_since_s=2.5, now=3.0, is_head=True)
    samples.settle(piece, 400)
    assert learned == [(400, 0.5)]
