"""Candidates for these tests, made of the few signals that matter to one."""

from bus.record import PressureRecord
from bus.registration import Registration
from bus.view import Pressure
from proxy.candidates import Candidate

REGISTRATION = Registration(worker_url="http://127.0.0.1:1", engine_url="http://127.0.0.1:2", models=("m",))

#: An instance of which everything is known, and nothing is to be said.
IDLE: dict[str, float] = {
    "prepare_queue_depth": 0,
    "active_prepare": 0,
    "ready_queue_depth": 0,
    "active_ready": 0,
    "inflight": 0,
    "pending_prefill_count": 0,
    "active_decode_count": 0,
    "next_slot_ready_in_ms": 0,
    "prefill_free_in_ms": 0,
    "predicted_prefill_backlog_ms": 0,
    "predicted_decode_backlog_ms": 0,
    "predicted_total_backlog_ms": 0,
    "predicted_wait_ms": 0,
    "queued_tokens": 0,
    "kv_usage": 0.0,
    "engine_running": 0,
    "engine_waiting": 0,
    "kv_capacity_tokens": 100_000,
    "prefill_tokens_per_s": 4000.0,
    "prefill_fixed_ms": 10.0,
    "decode_step_ms": 10.0,
    "decode_slope_ms": 0.5,
    "qps_1m": 0.0,
    "mean_output_tokens": 200.0,
}


def known(
    instance: str, *, own: int | None = 0, age_ms: float = 0.0, transit: tuple[int, int] = (0, 0), **signals: float
):
    """A candidate whose record says these signals and no others."""
    record = PressureRecord(epoch=1, sequence=1, **signals)
    pressure = Pressure(instance, REGISTRATION, record, age_ms, None, (), *transit)
    return Candidate(instance, pressure, own)


def full(instance: str, *, own: int | None = 0, transit: tuple[int, int] = (0, 0), **signals: float) -> Candidate:
    """A candidate that says everything: idle but for these signals."""
    return known(instance, own=own, transit=transit, **{**IDLE, **signals})


def silent(instance: str, own: int | None = 0) -> Candidate:
    """A candidate whose record has expired."""
    return Candidate(instance, Pressure(instance, REGISTRATION, None, None, "expired", (), 0, 0), own)
