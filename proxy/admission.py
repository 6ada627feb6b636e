"""Which instances a request fits: who is full, whose context is too short, and when to come again where all are full.

Pure: no I/O, no clock.
"""

from collections.abc import Sequence

from bus.errors import ForebayError
from bus.record import PressureRecord
from bus.view import Pressure
from proxy.candidates import RequestWork

#: Prompts are estimated within 15 % of what engines count; of what this is written for, code and tables, less well.
ESTIMATE_ERROR = 1.3

#: Told where no instance has published a prediction.
UNKNOWN_WAIT_S = 1.0

#: Where a prefill is to begin no later than that nobody waits behind a queue; ms.
SHORT_WAIT_MS = 1000


class FleetFull(ForebayError):
    """Every instance that was found to serve the request has a full queue."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("the queues of all instances are full")
        self.retry_after_s = retry_after_s


def is_full(pressure: Pressure) -> bool:
    """Whether the instance's worker would answer 429 now. Unknown is not full.

    What is in transit there takes the free slots first; what is beyond them will wait.
    """
    record, registration = pressure.record, pressure.registration
    if record is None or registration.queue_limit is None or record.inflight is None:
        return False
    if record.inflight + pressure.in_transit_requests < registration.slots:
        return False
    free_slots = max(0, registration.slots - record.inflight)
    beyond = max(0, pressure.in_transit_requests - free_slots)
    return _waiting(record) + beyond >= registration.queue_limit


def long_enough(found: list[Pressure], work: RequestWork, *, is_exact: bool) -> list[Pressure]:
    """Those whose engine has room for a prompt and its answer; all of them where none has, since that is its to say.

    Of one model's engines some may have less memory, and a shorter context. Where the prompt's tokens are only
    estimated, who is left out must be clearly too short.
    """
    tokens = work.prompt_tokens / (1.0 if is_exact else ESTIMATE_ERROR) + (work.output_cap or 0)
    return [p for p in found if (p.registration.context_tokens or tokens) >= tokens] or found


def has_free_slot(pressure: Pressure, own_inflight: int) -> bool:
    """Whether a request that goes there finds a slot, and no long line of prompts before its own.

    Where the record does not tell what is in flight, this replica's own count does.
    """
    record = pressure.record
    inflight = own_inflight if record is None or record.inflight is None else record.inflight
    if inflight + pressure.in_transit_requests >= pressure.registration.slots:
        return False
    return record is None or (record.predicted_wait_ms or 0) <= SHORT_WAIT_MS


def retry_after_s(full: Sequence[Pressure]) -> float:
    """Seconds until the first of the full instances has a place in its queue again.

    A slot for one more is `next_slot_ready_in_ms` away, when all that wait have been served: divided by their number
    it is the time between two ends, after each of which a place is free.
    """
    return min((wait for pressure in full if (wait := _place_s(pressure)) is not None), default=UNKNOWN_WAIT_S)


def _place_s(pressure: Pressure) -> float | None:
    """Seconds until a place in the instance's queue is free; None: unknown."""
    slot_ms, record = pressure.signal("next_slot_ready_in_ms"), pressure.record
    if slot_ms is None or record is None:
        return None
    return slot_ms / 1000 / (_waiting(record) + 1)


def _waiting(record: PressureRecord) -> int:
    """Requests that wait in the worker for a slot, prepared or not."""
    depths = (record.prepare_queue_depth, record.active_prepare, record.ready_queue_depth)
    return sum(depth for depth in depths if depth is not None)
