"""From a timeline and an engine's own report to the record that is published. No I/O, no clock."""

import math

from bus.record import PressureRecord
from bus.tokens import TokenRates
from workers.calibration import KNOWN_SAMPLES
from workers.engines import EngineLoad
from workers.estimates import RateMeter
from workers.timeline import Stage, Timeline


def make_record(
    timeline: Timeline,
    engine: EngineLoad,
    *,
    epoch: int,
    sequence: int,
    state_code: int,
    rate: RateMeter,
    token_rates: TokenRates,
    now: float,
) -> PressureRecord:
    """Pressure of an instance at `now`. Durations are rounded up: what is not over never reads zero.

    Speeds that are still a prior's guess are unknown, not published: a peer's stand in for them (proxy/ladder.py).
    So are those of an idle engine that nothing has confirmed for long (workers/trust.py).
    """
    plan = timeline.plan(now)
    calibration = timeline.calibration
    running = max(timeline.on_engine, 1)
    is_guess = timeline.is_guess(now)
    knows_answers = timeline.output_tokens.samples >= KNOWN_SAMPLES
    knows_prefill = calibration.is_prefill_known and not is_guess
    knows_decode = calibration.is_decode_known and not is_guess
    return PressureRecord(
        epoch=epoch,
        sequence=sequence,
        state_code=state_code,
        prepare_queue_depth=timeline.count(Stage.PREPARE_QUEUE),
        active_prepare=timeline.count(Stage.PREPARING),
        ready_queue_depth=timeline.count(Stage.READY_QUEUE),
        active_ready=timeline.count(Stage.DISPATCHING),
        inflight=len(timeline),
        pending_prefill_count=timeline.count(Stage.PREFILL),
        active_decode_count=timeline.count(Stage.DECODE),
        next_slot_ready_in_ms=_ms(plan.next_slot_ready_s),
        prefill_free_in_ms=_ms(plan.prefill_free_s),
        predicted_prefill_backlog_ms=_ms(plan.prefill_backlog_s),
        predicted_decode_backlog_ms=_ms(plan.decode_backlog_s),
        predicted_total_backlog_ms=_ms(plan.total_backlog_s),
        predicted_wait_ms=_ms(plan.wait_s),
        queued_tokens=plan.queued_tokens,
        kv_usage=engine.kv_usage,
        engine_running=engine.running,
        engine_waiting=engine.waiting,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        prefill_tokens_per_s=round(calibration.prefill_tokens_per_s) if knows_prefill else None,
        prefill_fixed_ms=calibration.prefill_fixed_s * 1000 if knows_prefill else None,
        decode_step_ms=calibration.decode_step_s(running) * 1000 if knows_decode else None,
        decode_slope_ms=calibration.decode_slope_s * 1000 if knows_decode else None,
        qps_1m=rate.per_s(now),
        mean_output_tokens=round(timeline.output_tokens.value) if knows_answers else None,
        tokens_per_kb_letters=round(token_rates.letters * 1000),
        tokens_per_kb_symbols=round(token_rates.symbols * 1000),
        tokens_per_kb_wide=round(token_rates.wide * 1000),
    )


def _ms(seconds: float) -> int:
    """Whole milliseconds, rounded up.

    >>> _ms(0.0), _ms(0.0001), _ms(1.5)
    (0, 1, 1500)
    """
    return math.ceil(seconds * 1000)
