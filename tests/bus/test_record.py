import math
from typing import get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bus.record import (
    IDENTITY,
    LARGEST,
    MAX_RECORD_BYTES,
    SIGNALS,
    PressureRecord,
    decode_record,
    encode_record,
    is_believable,
)

_HINTS = get_type_hints(PressureRecord)
FLOATS = tuple(name for name in SIGNALS if _HINTS[name] == float | None)
WHOLE = tuple(name for name in SIGNALS if name not in FLOATS)

TYPICAL = PressureRecord(
    epoch=1_700_000_000_000_000,
    sequence=100_000,
    prepare_queue_depth=12,
    active_prepare=4,
    ready_queue_depth=7,
    active_ready=2,
    inflight=60,
    pending_prefill_count=11,
    active_decode_count=24,
    next_slot_ready_in_ms=1_850,
    prefill_free_in_ms=2_400,
    predicted_prefill_backlog_ms=9_200,
    predicted_decode_backlog_ms=31_000,
    predicted_total_backlog_ms=40_200,
    predicted_wait_ms=2_400,
    queued_tokens=41_000,
    kv_usage=0.8125,
    engine_running=24,
    engine_waiting=3,
    kv_capacity_tokens=260_000,
    prefill_tokens_per_s=4_312,
    prefill_fixed_ms=12.5,
    decode_step_ms=31.25,
    decode_slope_ms=0.75,
    qps_1m=3.5,
    mean_output_tokens=212,
    tokens_per_kb_letters=220,
    tokens_per_kb_symbols=450,
    tokens_per_kb_wide=330,
)


def amounts(name: str) -> st.SearchStrategy[float]:
    """Every value that a signal measured in fractions can have."""
    return st.floats(0, 1 if name == "kv_usage" else float(LARGEST))


def records() -> st.SearchStrategy[PressureRecord]:
    """Every record that a worker can write."""
    believable = {name: st.none() | st.integers(0, LARGEST) for name in WHOLE}
    believable |= {name: st.none() | amounts(name) for name in FLOATS}
    epochs, sequences, states = st.integers(1, LARGEST), st.integers(0, LARGEST), st.integers(0, 2)
    return st.builds(PressureRecord, epoch=epochs, sequence=sequences, state_code=states, **believable)


def wire(*signals: object, schema: object = 1, epoch: object = 7, sequence: object = 1, state: object = 0) -> bytes:
    """A record as somebody else might have written it."""
    return msgspec.msgpack.encode([schema, epoch, sequence, state, *signals])


@given(record=records())
def test_every_record_survives_the_round_trip(record):
    """What is encoded is decoded again, with no fault and no doubt."""
    decoded = decode_record(encode_record(record))

    assert decoded.record == record
    assert decoded.fault is None
    assert decoded.bad_signals == ()


def test_a_typical_record_is_at_most_128_bytes():
    """A busy instance with every signal known fits into 128 bytes."""
    assert all(getattr(TYPICAL, name) is not None for name in SIGNALS)
    assert len(encode_record(TYPICAL)) <= 128


@given(record=records())
def test_the_largest_record_is_far_below_what_is_refused(record):
    """No record that a worker can write is too large to be read."""
    assert len(encode_record(record)) < MAX_RECORD_BYTES / 2


@given(record=records(), news=st.lists(st.none() | st.integers() | st.text(max_size=9) | st.floats(), max_size=5))
def test_an_older_reader_skips_the_fields_of_a_newer_writer(record, news):
    """Fields after the last one that is known change nothing."""
    values = msgspec.msgpack.decode(encode_record(record))

    decoded = decode_record(msgspec.msgpack.encode([*values, *(_small(value) for value in news)]))

    assert decoded.record == record


@given(record=records(), kept=st.integers(0, len(SIGNALS)))
def test_a_newer_reader_takes_what_an_older_writer_lacks_as_unknown(record, kept):
    """Fields that are missing at the end are None."""
    values = msgspec.msgpack.decode(encode_record(record))

    decoded = decode_record(msgspec.msgpack.encode(values[: len(IDENTITY) + kept]))

    assert decoded.fault is None
    for at, name in enumerate(SIGNALS):
        assert getattr(decoded.record, name) == (getattr(record, name) if at < kept else None)


@given(raw=st.binary(max_size=MAX_RECORD_BYTES + 8))
@example(raw=b"")
@example(raw=b"\x91" * 1000 + b"\xc0")  # deeply nested
@example(raw=b"\xdd\xff\xff\xff\xff\x01\x07\x01\x00")  # says that it has four billion fields
@example(raw=b"\x95\x01\x07\x01\x00\xa2\xff\xff")  # text that is no UTF-8
@example(raw=b"\x95\x01\x07\x01\x00\x81\x80\x01")  # a map with a map for a key
@example(raw=b"\x95\x01\x07\x01\x00\xc7\x0c\xff" + b"\xff" * 12)  # a time that does not exist
def test_arbitrary_bytes_never_raise(raw):
    """Whatever stands in the field, the answer is a record or the reason why there is none."""
    decoded = decode_record(raw)

    assert (decoded.record is None) == (decoded.fault is not None)


@given(
    values=st.lists(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists), max_size=9)
)
def test_arbitrary_messages_never_raise(values):
    """Well-formed MessagePack of any content is a record or a reason too."""
    decoded = decode_record(msgspec.msgpack.encode([1, 7, 1, 0, *values]))

    assert (decoded.record is None) == (decoded.fault is not None)


@pytest.mark.parametrize("depth", [900, 960, 975, 985])
def test_nesting_in_a_field_that_is_not_known_does_not_raise(depth):
    """A field of a newer writer, nested deeper than Python may go, costs at most this record."""
    fields = encode_record(PressureRecord(epoch=7, sequence=1))[3:]
    one_more = (len(PressureRecord.__struct_fields__) + 1).to_bytes(2, "big")

    decoded = decode_record(b"\xdc" + one_more + fields + b"\x91" * depth + b"\xc0")

    assert decoded.fault in {None, "does not decode", "too large"}


BAD = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "negative": -1,
    "negative fraction": -0.5,
    "true": True,
    "false": False,
    "string": "7",
    "above 2**53": 2**53,
    "above 2**63": 2**64 - 1,
    "list": [1],
    "map": {"a": 1},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("name", SIGNALS)
def test_a_bad_number_is_unknown_and_spares_its_neighbours(name, bad):
    """One signal that cannot be believed is None and named; all the others keep their values."""
    values = [0.5 if each in FLOATS else 3 for each in SIGNALS]
    values[SIGNALS.index(name)] = bad

    decoded = decode_record(wire(*values))

    assert decoded.fault is None
    assert decoded.bad_signals == (name,)
    for each in SIGNALS:
        assert getattr(decoded.record, each) == (None if each == name else 0.5 if each in FLOATS else 3)


@example(value=3.0)
@given(value=st.floats() | st.integers() | st.booleans() | st.text(max_size=3) | st.none())
@pytest.mark.parametrize("name", ["inflight", "kv_usage", "qps_1m", "predicted_wait_ms"])
def test_both_ways_of_decoding_believe_the_same(name, value):
    """Whether a neighbour is broken makes no difference to what is believed of a signal."""
    at = SIGNALS.index(name)
    neighbour = SIGNALS.index("mean_output_tokens")
    values: list[object] = [None] * len(SIGNALS)
    values[at] = value if not isinstance(value, int) or -(2**63) <= value < 2**64 else None
    alone = decode_record(wire(*values))
    values[neighbour] = "broken"
    beside_a_broken_one = decode_record(wire(*values))

    assert getattr(alone.record, name) == getattr(beside_a_broken_one.record, name)
    assert name in FLOATS or type(getattr(beside_a_broken_one.record, name)) in {int, type(None)}
    assert (getattr(alone.record, name) is not None) == is_believable(name, values[at])


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (None, "missing"),
        (b"\x00" * (MAX_RECORD_BYTES + 1), "too large"),
        (encode_record(TYPICAL)[:-1], "does not decode"),
        (encode_record(TYPICAL) + b"\x00", "does not decode"),
        (b'{"inflight": 1}', "does not decode"),
        (msgspec.msgpack.encode({"inflight": 1}), "does not decode"),
        (wire(schema=2), "schema"),
        (wire("not a number", schema=2), "schema"),
        (wire(schema=0), "schema"),
        (wire(schema=True), "schema"),
        (wire(epoch=0), "identity"),
        (wire(epoch=-7), "identity"),
        (wire(epoch=2**53), "identity"),
        (wire(epoch=True), "identity"),
        (wire(epoch="7"), "identity"),
        (wire(epoch=None), "identity"),
        (wire(epoch=math.nan), "identity"),
        (wire(sequence=-1), "identity"),
        (wire(sequence=None), "identity"),
        (wire(state=3), "identity"),
        (wire(state=-1), "identity"),
        (msgspec.msgpack.encode([]), "identity"),
        (msgspec.msgpack.encode([1]), "identity"),
    ],
)
def test_a_record_that_cannot_be_used_says_why(raw, fault):
    """Without a known schema and an identity nothing of a record is believed."""
    decoded = decode_record(raw)

    assert decoded.record is None
    assert decoded.fault == fault


def test_the_largest_epoch_survives():
    """An epoch of 2**53 - 1 keeps its last digit."""
    record = PressureRecord(epoch=LARGEST, sequence=LARGEST)

    assert decode_record(encode_record(record)).record == record


def test_the_state_has_a_name():
    """State codes are read as words."""
    assert PressureRecord(epoch=7, sequence=1).state == "ready"
    assert PressureRecord(epoch=7, sequence=1, state_code=1).state == "draining"


def _small(value: object) -> object:
    """An integer that MessagePack can carry."""
    return value % 2**32 if isinstance(value, int) else value
