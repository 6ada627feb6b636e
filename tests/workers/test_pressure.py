"""What a record says of speeds that a worker has, or has not, learned."""

from bus.record import PressureRecord
from bus.tokens import TokenRates
from workers.calibration import KNOWN_SAMPLES, Calibration
from workers.engines import EngineLoad
from workers.estimates import RateMeter, RunningMean
from workers.pressure import make_record
from workers.timeline import Timeline, Work

LEARNED = ("prefill_tokens_per_s", "prefill_fixed_ms", "decode_step_ms", "decode_slope_ms", "mean_output_tokens")


def cold() -> Timeline:
    """A worker that has seen nothing of its engine yet."""
    calibration = Calibration(prefill_tokens_per_s=4000.0, decode_step_s=0.030)
    return Timeline(slots=16, calibration=calibration, output_tokens=RunningMean(256.0))


def record_of(timeline: Timeline, now: float = 0.0) -> PressureRecord:
    """What would be published."""
    return make_record(
        timeline,
        EngineLoad(),
        epoch=1,
        sequence=1,
        state_code=0,
        rate=RateMeter(),
        token_rates=TokenRates(),
        now=now,
    )


def known(record: PressureRecord) -> list[str]:
    """Learned signals that a record reports."""
    return [name for name in LEARNED if getattr(record, name) is not None]


def test_an_idle_instance_that_nobody_knows_reports_no_speeds():
    """A prior's guess would shut it out beside a faster twin: a peer's values stand in, so that it is tried."""
    record = record_of(cold())
    assert known(record) == []
    assert (record.inflight, record.predicted_wait_ms, record.queued_tokens) == (0, 0, 0)


def test_while_it_is_tried_the_prior_stands():
    """One request on it: what it is thought to be is published, so that it is not flooded before anything is known."""
    timeline = cold()
    timeline.accept("a", Work(100), 0.0)
    record = record_of(timeline)
    assert known(record) == list(LEARNED)
    assert (record.prefill_tokens_per_s, record.decode_step_ms, record.mean_output_tokens) == (4000, 30.0, 256)


def test_what_has_been_learned_is_reported_idle_or_not():
    """A few samples of each make an instance known; an engine that only embeds never learns a step."""
    timeline = cold()
    for _ in range(KNOWN_SAMPLES):
        timeline.calibration.learn_prefill(1000, 0.125)
    assert known(record_of(timeline)) == ["prefill_tokens_per_s", "prefill_fixed_ms"]
    for _ in range(KNOWN_SAMPLES):
        timeline.calibration.learn_decode_step(4, 0.009)
    assert known(record_of(timeline)) == list(LEARNED)


async def test_an_engine_that_has_lost_count_spoils_no_estimate(site):
    """Numbers that no request has are not learned from, and the worker lives."""
    many = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":%d}}' % 10**20
    one = await site(lambda peer, _: peer.answer(many))
    before = one.instance.timeline.output_tokens.value
    for _ in range(2):
        assert (await (await one.ask(is_stream=False)).answer())[0] == 200
    await one.comes_to_rest()
    assert one.instance.timeline.output_tokens.value == before
    assert not any(task.done() for task in one.worker.tasks)
