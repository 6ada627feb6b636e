"""The timeline: worked numbers, and what corrects them."""

import pytest

from bus.record import decode_record, encode_record
from bus.tokens import TokenRates
from workers.calibration import Calibration
from workers.engines import EngineLoad
from workers.estimates import RateMeter, RunningMean
from workers.pressure import make_record
from workers.timeline import OVERDUE_SHARE, Request, Stage, Timeline, Work


def known_speeds(slots: int = 2, output_tokens: float = 100.0) -> Timeline:
    """1 000 tokens/s of prefill, 10 ms a token, answers of 100 tokens: 1 s of decode."""
    return Timeline(
        slots=slots,
        calibration=Calibration(prefill_tokens_per_s=1000.0, decode_step_s=0.010),
        output_tokens=RunningMean(output_tokens),
    )


def on_engine(timeline: Timeline, name: str, work: Work, now: float) -> Request:
    """Accept a request and hand it to the engine at once."""
    request = timeline.accept(name, work, now)
    timeline.advance(request, Stage.PREFILL, now)
    return request


def record_of(timeline: Timeline, now: float):
    """The record that would be published, through its codec."""
    record = make_record(
        timeline,
        EngineLoad(),
        epoch=1,
        sequence=1,
        state_code=0,
        rate=RateMeter(),
        token_rates=TokenRates(),
        now=now,
    )
    decoded = decode_record(encode_record(record))
    assert not decoded.bad_signals
    return decoded.record


# -- worked numbers


def test_an_idle_engine_is_free_now():
    """Nothing is accepted: every duration and every count is 0, and a request waits for its own prefill only."""
    timeline = known_speeds()
    plan = timeline.plan(5.0)
    assert (plan.wait_s, plan.total_backlog_s, plan.queued_tokens, plan.has_free_slot) == (0, 0, 0, True)
    assert timeline.accept("a", Work(200), 5.0).predicted_ttft_s == pytest.approx(0.2)


def test_three_requests_in_two_slots_to_the_last_digit():
    """Prefills of 200, 300 and 500 ms in a line, answers of 1 s; the third waits for the end of the first."""
    timeline = known_speeds()
    first = on_engine(timeline, "a", Work(200), 0.0)
    second = on_engine(timeline, "b", Work(300), 0.0)
    third = timeline.accept("c", Work(500), 0.0)
    assert first.predicted_ttft_s == pytest.approx(0.2)
    assert second.predicted_ttft_s == pytest.approx(0.2 + 0.3)
    # expected ends: a 1.2, b 1.5, their mean by rates 2 / (1/1.2 + 1/1.5) = 4/3; so the first of the two ends halfway
    # between 1.2 and 4/3 / 2, the second halfway between 1.5 and 4/3 * (1/2 + 1)
    first_end_s, second_end_s = (1.2 + 2 / 3) / 2, (1.5 + 2) / 2
    assert third.predicted_ttft_s == pytest.approx(first_end_s + 0.5)

    plan = timeline.plan(0.0)
    assert plan.next_slot_ready_s == pytest.approx(second_end_s)
    assert plan.prefill_free_s == pytest.approx(first_end_s + 0.5)
    assert plan.prefill_backlog_s == pytest.approx(0.2 + 0.3 + 0.5)
    assert plan.decode_backlog_s == pytest.approx(3 * 1.0 / 2)
    assert plan.wait_s == pytest.approx(second_end_s)
    assert plan.total_backlog_s == pytest.approx(second_end_s)
    assert plan.queued_tokens == 1000
    assert not plan.has_free_slot


def test_a_first_token_corrects_the_plan():
    """The first token of `a` comes after 400 instead of 200 ms: all that is to come is planned again from then."""
    timeline = known_speeds()
    first = on_engine(timeline, "a", Work(200), 0.0)
    on_engine(timeline, "b", Work(300), 0.0)
    timeline.advance(first, Stage.DECODE, 0.4)
    plan = timeline.plan(0.4)
    assert plan.prefill_free_s == pytest.approx(0.3)
    assert plan.next_slot_ready_s == pytest.approx((1.0 + 1 / (1 / 1.0 + 1 / 1.3)) / 2)  # a 1.0, b 0.3 + 1.0 from then
    assert plan.queued_tokens == 300


def test_an_end_frees_the_slot_at_once():
    """With both slots taken a request would wait; when one ends there is a slot, and only the prefill line counts."""
    timeline = known_speeds()
    first = on_engine(timeline, "a", Work(200), 0.0)
    on_engine(timeline, "b", Work(300), 0.0)
    assert timeline.finish(first, 0.1, is_success=False)
    plan = timeline.plan(0.1)
    assert (plan.next_slot_ready_s, plan.has_free_slot) == (0, True)
    assert plan.prefill_free_s == pytest.approx(0.3)


def test_with_a_free_slot_the_backlog_is_the_prefill_line():
    """A line of 3 s of prefill is the backlog of an instance with free slots, though a slot is free now."""
    timeline = known_speeds(slots=8)
    for name in "abc":
        on_engine(timeline, name, Work(1000), 0.0)
    plan = timeline.plan(0.0)
    assert (plan.has_free_slot, plan.next_slot_ready_s) == (True, 0.0)
    assert plan.total_backlog_s == pytest.approx(3.0)


def test_with_all_slots_busy_the_backlog_is_the_wait_for_a_slot():
    """Both decode: no prefill is left, and the backlog is the time until one of them ends."""
    timeline = known_speeds()
    first = on_engine(timeline, "a", Work(100, output_cap=20), 0.0)
    second = on_engine(timeline, "b", Work(100, output_cap=50), 0.0)
    timeline.advance(first, Stage.DECODE, 0.1)
    timeline.advance(second, Stage.DECODE, 0.2)
    plan = timeline.plan(0.2)
    assert plan.prefill_free_s == 0
    # a has had 100 ms, 10 of its 20 tokens, and has 0.1 s left; b has 0.5 s
    assert plan.total_backlog_s == pytest.approx((0.1 + 1 / (1 / 0.1 + 1 / 0.5)) / 2)


def test_an_embedding_has_no_decode():
    """A request that produces nothing holds its slot for its prefill only."""
    timeline = known_speeds(slots=1)
    on_engine(timeline, "a", Work(500, output_cap=0, is_stream=False), 0.0)
    plan = timeline.plan(0.0)
    assert plan.decode_backlog_s == 0
    assert plan.next_slot_ready_s == pytest.approx(0.5)


def test_foreign_requests_hold_slots():
    """The engine runs two requests that are not ours: no slot is free until one of two mean answers ends."""
    timeline = known_speeds()
    timeline.foreign = 2
    plan = timeline.plan(0.0)
    assert not plan.has_free_slot
    assert plan.next_slot_ready_s == pytest.approx((1.0 + 1.0 / 2) / 2)
    assert plan.total_backlog_s == plan.next_slot_ready_s


def test_an_overfull_engine_lets_a_waiting_request_in_only_when_enough_have_ended():
    """Two slots, three of others: one of ours starts after the second end, not after the first."""
    timeline = known_speeds()
    decoding = on_engine(timeline, "a", Work(100, output_cap=20), 0.0)
    timeline.advance(decoding, Stage.DECODE, 0.1)  # ends 0.2 s from then
    timeline.foreign = 2  # end 1.0 s from then
    timeline.accept("b", Work(300), 0.1)
    plan = timeline.plan(0.1)
    mean_s = 3 / (1 / 0.2 + 1 / 1.0 + 1 / 1.0)
    assert plan.prefill_free_s == pytest.approx((1.0 + mean_s * (1 / 3 + 1 / 2)) / 2 + 0.3)


def test_a_request_for_several_answers_holds_as_many_slots():
    """Four slots, three answers of one request: two more requests need two, so the second waits for all three."""
    timeline = known_speeds(slots=4)
    on_engine(timeline, "a", Work(200, sequences=3), 0.0)
    plan = timeline.plan(0.0)
    assert (plan.has_free_slot, plan.next_slot_ready_s) == (True, 0.0)
    assert plan.decode_backlog_s == pytest.approx(3 * 1.0 / 4)
    timeline.accept("b", Work(300, sequences=2), 0.0)
    plan = timeline.plan(0.0)
    assert not plan.has_free_slot
    assert plan.prefill_free_s == pytest.approx(1.2 + 0.3)  # b starts when a has given back its three at once
    assert plan.next_slot_ready_s == pytest.approx(1.2)


def test_a_request_for_more_answers_than_there_are_slots_takes_all_and_no_more():
    """It runs alone; the next one waits for its end."""
    timeline = known_speeds(slots=4)
    request = on_engine(timeline, "a", Work(200, sequences=64), 0.0)
    assert (request.places, timeline.places, timeline.on_engine, timeline.sequences_on_engine) == (4, 4, 4, 64)
    assert timeline.accept("b", Work(300), 0.0).predicted_ttft_s == pytest.approx(1.2 + 0.3)
    timeline.finish(request, 1.0)
    assert (timeline.places, timeline.on_engine, timeline.sequences_on_engine) == (1, 0, 0)


def test_steps_are_learned_with_the_answers_that_run_and_not_with_their_requests():
    """A step takes 8 ms and a quarter for each answer; requests of 64 and of one come in turn."""
    timeline = Timeline(
        slots=64,
        calibration=Calibration(prefill_tokens_per_s=8000.0, decode_step_s=0.01),
        output_tokens=RunningMean(256.0),
    )
    now = 0.0
    for number in range(60):
        sequences = 64 if number % 2 else 1
        request = on_engine(timeline, str(number), Work(200, 256, sequences=sequences), now)
        now += 0.025
        timeline.advance(request, Stage.DECODE, now)
        now += 255 * (0.008 + 0.00025 * sequences)
        timeline.finish(request, now, output_tokens=256)
    assert timeline.calibration.decode_step_s(1) == pytest.approx(0.00825, rel=0.05)
    assert timeline.calibration.decode_step_s(64) == pytest.approx(0.024, rel=0.05)


# -- overdue


def test_an_overdue_head_of_line_is_predicted_anew_and_grows():
    """A prefill of 1 s that has hung for 10, 100 and 1 000 s still has a tenth of that to go."""
    timeline = known_speeds()
    on_engine(timeline, "a", Work(1000), 0.0)
    assert timeline.plan(0.99).prefill_free_s == pytest.approx(OVERDUE_SHARE * 1.0)
    for hung_s in (10.0, 100.0, 1000.0):
        assert timeline.plan(hung_s).prefill_free_s == pytest.approx(OVERDUE_SHARE * hung_s)
        assert timeline.plan(hung_s).queued_tokens >= 1


@pytest.mark.parametrize("late_s", [0.0, 0.5, 1.0, 2.0, 3600.0, 1e6])
def test_overdue_work_reads_zero_neither_in_the_plan_nor_in_the_record(late_s):
    """One request decodes and one is in prefill on two slots, both long past their time."""
    timeline = known_speeds()
    first = on_engine(timeline, "a", Work(100), 0.0)
    timeline.advance(first, Stage.DECODE, 0.1)
    on_engine(timeline, "b", Work(100), 0.1)
    now = 0.1 + late_s
    plan, record = timeline.plan(now), record_of(timeline, now)
    assert min(plan.wait_s, plan.total_backlog_s, plan.prefill_free_s, plan.decode_backlog_s, plan.queued_tokens) > 0
    assert record is not None
    assert record.predicted_total_backlog_ms >= 1
    assert record.predicted_wait_ms >= 1
    assert record.next_slot_ready_in_ms >= 1
    assert record.prefill_free_in_ms >= 1
    assert record.queued_tokens >= 1


# -- orders of events


def test_the_same_id_cannot_be_accepted_twice():
    """A second request of a known id is refused, and the first stays what it was."""
    timeline = known_speeds()
    timeline.accept("a", Work(10), 0.0)
    with pytest.raises(KeyError):
        timeline.accept("a", Work(99), 0.0)
    assert len(timeline) == 1


def test_an_earlier_stage_or_a_finished_request_changes_nothing():
    """Late and repeated messages find the request further on, or gone."""
    timeline = known_speeds()
    request = on_engine(timeline, "a", Work(10), 0.0)
    timeline.advance(request, Stage.READY_QUEUE, 0.1)
    assert request.stage is Stage.PREFILL
    assert timeline.finish(request, 0.2)
    assert not timeline.finish(request, 0.3)
    timeline.advance(request, Stage.DECODE, 0.4)
    assert [timeline.count(stage) for stage in Stage] == [0] * 6


def test_a_finished_request_whose_id_is_used_again_does_not_touch_the_new_one():
    """`finish` is bound to the request, not to its name."""
    timeline = known_speeds()
    old = timeline.accept("a", Work(10), 0.0)
    timeline.finish(old, 0.1)
    new = timeline.accept("a", Work(10), 0.2)
    assert not timeline.finish(old, 0.3)
    timeline.advance(old, Stage.DECODE, 0.3)
    assert (len(timeline), new.stage, timeline.count(Stage.PREPARE_QUEUE)) == (1, Stage.PREPARE_QUEUE, 1)


def test_a_plain_request_is_taken_to_decode_when_its_prefill_should_be_done():
    """Nothing is seen of a plain answer before its end, so the line moves on by prediction."""
    timeline = known_speeds()
    on_engine(timeline, "a", Work(200, is_stream=False), 0.0)
    on_engine(timeline, "b", Work(300, is_stream=False), 0.0)
    timeline.plan(0.25)
    assert (timeline.count(Stage.PREFILL), timeline.count(Stage.DECODE)) == (1, 1)
    assert timeline.plan(0.25).prefill_free_s == pytest.approx(0.25)
    timeline.plan(0.5)
    assert (timeline.count(Stage.PREFILL), timeline.count(Stage.DECODE)) == (0, 2)


def test_a_failure_teaches_nothing():
    """An answer that broke off says nothing about the engine's speed nor about the length of answers."""
    timeline = known_speeds()
    request = on_engine(timeline, "a", Work(200), 0.0)
    timeline.advance(request, Stage.DECODE, 0.2)
    timeline.finish(request, 900.0, output_tokens=5, is_success=False)
    assert timeline.output_tokens.samples == 0
    assert timeline.calibration.decode_samples == 0
