"""The pressure record and its codec: what a queue worker says about one instance, as MessagePack.

Owns the wire format and the rule that a bad number is *unknown*, never zero. No Redis, no asyncio, no clock.

On the wire a record is one MessagePack array; the position is the name. New fields go to the end, so that an older
reader skips what it does not know and a newer reader sees `None` (unknown) where an older worker said nothing.
"""

from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

SCHEMA_VERSION: Final = 1

#: A record is some 110 bytes; whatever is larger was not written by a queue worker and is not decoded.
MAX_RECORD_BYTES: Final = 1024

#: Prompt length at which `prefill_tokens_per_s` is given.
TYPICAL_PROMPT_TOKENS: Final = 1024

#: Largest count, duration (ms) or rate that is believed: above it, and for inf and NaN, the signal is unknown.
LARGEST: Final = 2**53 - 1

State = Literal["ready", "draining", "failing"]
_STATES: Final[tuple[State, ...]] = get_args(State)

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Millis = Annotated[int, Meta(ge=0, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=float(LARGEST))]
Share = Annotated[float, Meta(ge=0, le=1)]


class PressureRecord(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Pressure of one instance at one moment, as its queue worker sees it.

    Counts are requests, `*_ms` are milliseconds from the moment of publishing, `*_tokens` are tokens. Every field but
    the identity may be None: not measured, hence unknown.
    """

    # identity
    schema: int = SCHEMA_VERSION
    epoch: int
    """Fencing number of the worker: of two workers for one instance the higher one wins."""
    sequence: int
    """Number of this record within its epoch."""
    state_code: int = 0
    """Index into `State`."""

    # instantaneous: each accepted request is in exactly one of the first four, in pending_prefill_count or in
    # active_decode_count; inflight is their sum
    prepare_queue_depth: Count | None = None
    active_prepare: Count | None = None
    ready_queue_depth: Count | None = None
    active_ready: Count | None = None
    inflight: Count | None = None

    # predicted, from the timeline
    pending_prefill_count: Count | None = None
    active_decode_count: Count | None = None
    next_slot_ready_in_ms: Millis | None = None
    prefill_free_in_ms: Millis | None = None
    predicted_prefill_backlog_ms: Millis | None = None
    predicted_decode_backlog_ms: Millis | None = None
    predicted_total_backlog_ms: Millis | None = None
    predicted_wait_ms: Millis | None = None

    # token work
    queued_tokens: Count | None = None

    # engine
    kv_usage: Share | None = None
    engine_running: Count | None = None
    engine_waiting: Count | None = None
    kv_capacity_tokens: Count | None = None
    prefill_tokens_per_s: Amount | None = None
    """Capacity for prefill at a prompt of TYPICAL_PROMPT_TOKENS, fixed cost included."""
    prefill_fixed_ms: Amount | None = None
    """Part of a prefill that does not grow with the prompt."""
    decode_step_ms: Amount | None = None
    """Time from one token to the next, with what runs now."""
    decode_slope_ms: Amount | None = None
    """What one more running request adds to a step."""
    qps_1m: Amount | None = None

    # learned
    mean_output_tokens: Amount | None = None
    tokens_per_kb_letters: Count | None = None
    """Tokens of 1 000 bytes of ASCII letters and spaces, see bus/tokens.py."""
    tokens_per_kb_symbols: Count | None = None
    """The same of digits, punctuation and line ends."""
    tokens_per_kb_wide: Count | None = None
    """The same of UTF-8 beyond ASCII."""

    @property
    def state(self) -> State:
        """What it takes: "ready" all, "draining" nothing new; "failing": its engine fails, others are preferred."""
        return _STATES[self.state_code]


def state_code(state: State) -> int:
    """Code of a state in a record.

    >>> state_code("ready"), state_code("draining"), state_code("failing")
    (0, 1, 2)
    """
    return _STATES.index(state)


#: Fields that identify a record; all the others are signals, each of which may be unknown by itself.
IDENTITY: Final = ("schema", "epoch", "sequence", "state_code")
SIGNALS: Final = tuple(name for name in PressureRecord.__struct_fields__ if name not in IDENTITY)

#: Predicted durations: the reader ages them, since they were true at the moment of publishing.
DURATIONS: Final = (
    "next_slot_ready_in_ms",
    "prefill_free_in_ms",
    "predicted_prefill_backlog_ms",
    "predicted_decode_backlog_ms",
    "predicted_total_backlog_ms",
    "predicted_wait_ms",
)

_encode = msgspec.msgpack.Encoder().encode
_decode_strict = msgspec.msgpack.Decoder(PressureRecord).decode
_decode_loose = msgspec.msgpack.Decoder(list[Any]).decode

_HINTS: Final = get_type_hints(PressureRecord)
_WHOLE: Final = frozenset(name for name in SIGNALS if _HINTS[name] == (int | None))
_SHARES: Final = frozenset({"kv_usage"})


class Decoded(msgspec.Struct, frozen=True):
    """A record as far as it could be believed, and what could not be."""

    record: PressureRecord | None
    """None: nothing of it can be used."""
    fault: str | None = None
    """Why `record` is None: "missing", "too large", "does not decode", "schema", "identity"."""
    bad_signals: tuple[str, ...] = ()
    """Signals that were there and could not be believed; they are None in `record`."""


def encode_record(record: PressureRecord) -> bytes:
    """MessagePack bytes of a record, at most 128 for typical values.

    >>> decode_record(encode_record(PressureRecord(epoch=7, sequence=1, inflight=3))).record.inflight
    3
    """
    return _encode(record)


def decode_record(raw: bytes | None) -> Decoded:
    r"""Believe of `raw` what can be believed.

    A number that is negative, NaN, infinite, above LARGEST, a bool or no number at all makes that one signal unknown. A
    record of another schema, without identity, larger than 1 024 bytes or not MessagePack is unknown as a whole.

    >>> decode_record(b"\x93").fault
    'does not decode'
    """
    if raw is None:
        return Decoded(None, "missing")
    if len(raw) > MAX_RECORD_BYTES:
        return Decoded(None, "too large")
    try:
        record = _decode_strict(raw)
    except (
        msgspec.DecodeError,
        RecursionError,
    ):  # covers ValidationError: some field is out of range, or NaN, or no number
        return _salvage(raw)
    if record.schema != SCHEMA_VERSION:
        return Decoded(None, "schema")
    if not _has_identity(record.epoch, record.sequence, record.state_code):
        return _salvage(raw)
    return Decoded(record)


def _salvage(raw: bytes) -> Decoded:
    """Field by field: what the strict decoder refused as a whole."""
    try:
        values = _decode_loose(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Decoded(None, "does not decode")
    if len(values) < len(IDENTITY):
        return Decoded(None, "identity")
    schema, epoch, sequence, state_code = values[: len(IDENTITY)]
    if schema != SCHEMA_VERSION or isinstance(schema, bool):
        return Decoded(None, "schema")
    if not _has_identity(epoch, sequence, state_code):
        return Decoded(None, "identity")
    believed: dict[str, Any] = {}
    bad: list[str] = []
    for name, value in zip(SIGNALS, values[len(IDENTITY) :], strict=False):
        if value is None:
            continue
        if is_believable(name, value):
            believed[name] = int(value) if name in _WHOLE else value
        else:
            bad.append(name)
    record = PressureRecord(epoch=epoch, sequence=sequence, state_code=state_code, **believed)
    return Decoded(record, None, tuple(bad))


def is_believable(name: str, value: object) -> bool:
    """Whether `value` is a number that signal `name` can have.

    >>> is_believable("inflight", 3), is_believable("inflight", True), is_believable("kv_usage", 1.5)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    largest = 1 if name in _SHARES else LARGEST
    if not 0 <= value <= largest:  # NaN and both infinities too
        return False
    return name not in _WHOLE or value == int(value)


def _has_identity(epoch: object, sequence: object, state_code: object) -> bool:
    """Whether the fields that say whose record this is can be believed."""
    return (
        type(epoch) is int
        and type(sequence) is int
        and type(state_code) is int
        and 0 < epoch <= LARGEST
        and 0 <= sequence <= LARGEST
        and 0 <= state_code < len(_STATES)
    )
