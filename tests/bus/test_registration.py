import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.registration import Registration, decode_entry, encode_registration
from tests.bus.worker import registration


@given(
    epoch=st.integers(0, 10**16 - 1),
    expires_us=st.integers(0, 10**16 - 1),
    models=st.lists(st.text(max_size=20).filter(str.isprintable), max_size=4).map(tuple),
    slots=st.integers(1, 4096),
    state=st.sampled_from(["ready", "draining", "gone"]),
)
def test_every_entry_survives_the_round_trip(epoch, expires_us, models, slots, state):
    """What a worker announces is what a reader reads, to the last digit of its times."""
    announced = registration(models=models, slots=slots, state=state)

    entry = decode_entry(f"{epoch};{expires_us};".encode() + encode_registration(announced))

    assert (entry.epoch, entry.expires_us, entry.registration) == (epoch, expires_us, announced)


@given(raw=st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"7;8;" + tail))
def test_arbitrary_bytes_never_raise(raw):
    """Whatever stands in the hash is an entry or none."""
    decode_entry(raw)


GOOD = encode_registration(registration())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"7;8;",
        b"7;8",
        b";;" + GOOD,
        b"-7;8;" + GOOD,
        b"7;-8;" + GOOD,
        b"1_0;8;" + GOOD,
        b" 7;8;" + GOOD,
        b"7.5;8;" + GOOD,
        b"inf;8;" + GOOD,
        b"7;nan;" + GOOD,
        b"9" * 17 + b";8;" + GOOD,
        b"7;8;" + GOOD[:-1],
        b"7;8;" + GOOD + b"\x00",
        b"7;8;" + msgspec.msgpack.encode({"worker_url": "http://w"}),
        b"7;8;\x81\xa1x" + b"\x91" * 1500 + b"\xc0",
        b"7;8;\x81\xaaworker_url\xa2\xff\xff",
    ],
)
def test_what_is_no_entry_is_none(raw):
    """Rubbish in the hash is no registration, and no error."""
    assert decode_entry(raw) is None


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ttl_ms", 0),
        ("ttl_ms", -1500),
        ("ttl_ms", 2**53),
        ("ttl_ms", True),
        ("ttl_ms", "1500"),
        ("slots", 0),
        ("slots", -1),
        ("state", "asleep"),
        ("models", "all"),
        ("models", ["m\n2026-01-01 ERROR forged"]),
        ("models", ["\x1b[2J"]),
        ("kind", "vllm\x1b]0;owned\x07"),
        ("engine_url", "http://e\r\nx"),
        ("worker_url", None),
    ],
)
def test_a_registration_with_a_bad_value_is_none(name, bad):
    """A TTL or a number of slots that cannot be is not believed: ages are judged by it."""
    values = msgspec.to_builtins(registration()) | {name: bad}

    assert decode_entry(b"7;8;" + msgspec.msgpack.encode(values)) is None


def test_fields_of_a_newer_worker_are_skipped():
    """An older reader reads what it knows of a newer registration."""
    values = msgspec.to_builtins(registration()) | {"zone": "b"}

    assert decode_entry(b"7;8;" + msgspec.msgpack.encode(values)).registration == registration()


def test_the_heartbeat_is_a_third_of_the_ttl():
    """Two publishes may fail before a living worker's record expires."""
    assert Registration(worker_url="w", engine_url="e", ttl_ms=1500).heartbeat_ms == 500
