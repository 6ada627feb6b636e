"""What a record says of speeds that a worker has, or has not, learned."""

import pytest

from bus.record import PressureRecord
from bus.tokens import TokenRates
from workers.calibration import KNOWN_SAMPLES, Calibration
from workers.engines import EngineLoad
from workers.estimates import RateMeter, RunningMean
from workers.pressure import make_record
from workers.timeline import Stage, Timeline, Work
from workers.trust import BELIEVED_S

SPEEDS = ("prefill_tokens_per_s", "prefill_fixed_ms", "decode_step_ms", "decode_slope_ms")
LEARNED = (*SPEEDS, "mean_output_tokens")


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
    """A prior's guess would shut it out beside a faster twin: a peer's values stand in."""
    record = record_of(cold())
    assert known(record) == []
    assert (record.inflight, record.predicted_wait_ms, record.queued_tokens) == (0, 0, 0)


def test_while_it_is_tried_it_is_taken_for_a_peers_equal_with_what_it_has():
    """Answers may take long: by its prior it would be shut out until the first has ended; what runs there counts."""
    timeline = cold()
    for name in "abc":
        timeline.accept(name, Work(1000), 0.0)
    record = record_of(timeline)
    assert known(record) == []
    assert (record.inflight, record.queued_tokens) == (3, 3000)
    assert record.predicted_wait_ms > 0


def test_what_has_been_learned_is_reported_idle_or_not():
    """A few samples of each make an instance known; an engine that only embeds never learns a step."""
    timeline = cold()
    for _ in range(KNOWN_SAMPLES):
        timeline.calibration.learn_prefill(1000, 0.125)
    assert known(record_of(timeline)) == ["prefill_tokens_per_s", "prefill_fixed_ms"]
    for _ in range(KNOWN_SAMPLES):
        timeline.calibration.learn_decode_step(4, 0.009)
    assert known(record_of(timeline)) == list(SPEEDS)
    for _ in range(KNOWN_SAMPLES):
        timeline.output_tokens.learn(100)
    assert known(record_of(timeline)) == list(LEARNED)


def answer(timeline: Timeline, at_s: float, *, pace: float = 1.0) -> float:
    """Serve a prompt of 1 000 tokens in `pace` × 0.25 s and 100 tokens more in as many seconds; give its end."""
    request = timeline.accept(f"at {at_s}", Work(1000), at_s)
    timeline.advance(request, Stage.PREFILL, at_s)
    timeline.advance(request, Stage.DECODE, at_s + pace * 0.25)
    end_s = at_s + pace * 1.25
    timeline.finish(request, end_s, output_tokens=101)
    return end_s


def test_what_nothing_has_confirmed_for_long_is_a_guess_again_while_the_engine_is_idle():
    """Or one that was slow for a minute would never be asked again; answers' length is no matter of the engine."""
    timeline, now = cold(), 0.0
    for _ in range(20):
        now = answer(timeline, now)
    assert known(record_of(timeline, now + BELIEVED_S - 1)) == list(LEARNED)
    assert known(record_of(timeline, now + BELIEVED_S)) == ["mean_output_tokens"]
    timeline.accept("a", Work(1000), now + BELIEVED_S)
    record = record_of(timeline, now + BELIEVED_S)
    assert known(record) == list(LEARNED), "one is enough to find out: it is not to be flooded meanwhile"
    assert record.decode_step_ms == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(("pace", "least", "most"), [(1.0, 0.95, 1.05), (0.2, 0.19, 0.21), (5.0, 1.0, 1.2)])
def test_after_a_silence_one_answer_is_believed_that_is_faster_and_not_one_that_is_slower(pace, least, most):
    """Who is thought fast is asked again soon, and cannot stay so for no reason; one slow answer may be chance."""
    timeline, now = cold(), 0.0
    for _ in range(60):
        now = answer(timeline, now)
    before = record_of(timeline, now)
    now = answer(timeline, now + BELIEVED_S, pace=pace)
    after = record_of(timeline, now)
    assert least <= after.decode_step_ms / before.decode_step_ms <= most
    assert least <= before.prefill_tokens_per_s / after.prefill_tokens_per_s <= most
    assert known(record_of(timeline, now + BELIEVED_S - 1)) == list(LEARNED)


def test_an_answer_that_tells_nothing_confirms_nothing():
    """A request that failed leaves a guess a guess."""
    timeline, now = cold(), 0.0
    for _ in range(20):
        now = answer(timeline, now)
    request = timeline.accept("a", Work(1000), now + BELIEVED_S)
    timeline.finish(request, now + BELIEVED_S, is_success=False)
    assert known(record_of(timeline, now + BELIEVED_S)) == ["mean_output_tokens"]


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
