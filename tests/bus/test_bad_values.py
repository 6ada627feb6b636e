"""Every bad value seen elsewhere, put straight into the Redis hash.

The reading of all other instances goes on, that signal or record is unknown, and `Reader.faults` counts it once.
"""

import math

import msgspec
import pytest

from bus.keys import instances_key, pressure_key, reserved_key
from bus.reader import Reader
from bus.record import IDENTITY, SIGNALS, PressureRecord, encode_record
from bus.registration import encode_registration
from tests.bus.worker import POOL, Worker, registration

BAD_NUMBERS = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "negative": -1,
    "true": True,
    "false": False,
    "string": "3",
    "above 2**53": 2**53,
    "list": [3],
}


@pytest.fixture
async def pool(bus):
    """Give three instances, of which "bad" is about to be spoilt, and a reader that has seen them."""
    workers = {name: Worker(bus.client, name, ttl_ms=60_000) for name in ("bad", "good-1", "good-2")}
    for worker in workers.values():
        worker.signals = {"inflight": 3, "kv_usage": 0.5}
        await worker.publish()
    return Pool(bus, workers["bad"].publisher.epoch)


class Pool:
    """The pool, what is put into it, and what a reader then says."""

    def __init__(self, bus, epoch: int) -> None:
        self._redis = bus.client
        self._key = pressure_key(POOL, "bad")
        self._reader = Reader(bus.connect(), POOL, budget_s=5)
        self.epoch = epoch

    @property
    def faults(self):
        """What the reader has counted."""
        return dict(self._reader.faults)

    async def put(self, **fields: bytes | int | str | None) -> None:
        """Set or, where None, delete fields of the hash of "bad"."""
        for name, value in fields.items():
            if value is None:
                await self._redis.hdel(self._key, name)
            else:
                await self._redis.hset(self._key, name, value)

    async def put_other_type(self) -> None:
        """Put a list where the hash of "bad" was."""
        await self._redis.delete(self._key)
        await self._redis.rpush(self._key, "no", "hash")

    async def put_reserved(self, fields: dict[str, str] | None) -> None:
        """Put fields, or a string, where the reservations at "bad" are."""
        if fields is None:
            await self._redis.set(reserved_key(POOL, "bad"), "no hash")
        else:
            await self._redis.hset(reserved_key(POOL, "bad"), mapping=fields)

    async def put_entry(self, instance: str | bytes, value: bytes) -> None:
        """Set an entry of the registrations."""
        await self._redis.hset(instances_key(POOL), instance, value)

    async def read(self):
        """What is seen of "bad", after three views; the others have to be seen as ever."""
        for _ in range(3):
            view = await self._reader.view()
        live = {p.instance: p for p in view.live(view.read_at_s)}
        for name in ("good-1", "good-2"):
            assert (live[name].signal("inflight"), live[name].signal("kv_usage")) == (3, 0.5)
            assert live[name].fault is None
        assert set(live) == {"bad", "good-1", "good-2"}
        assert self._reader.read_failures == 0
        return live["bad"]


def message(epoch: int, schema: object = 1, **signals: object) -> bytes:
    """A record with any values."""
    values: dict[str, object] = dict.fromkeys(SIGNALS) | signals
    return msgspec.msgpack.encode([schema, epoch, 2, 0, *values.values()])


@pytest.mark.parametrize("bad", BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
@pytest.mark.parametrize("name", ["inflight", "predicted_wait_ms", "kv_usage", "qps_1m"])
async def test_a_bad_number_makes_that_one_signal_unknown(pool, name, bad):
    """The other signals of the same record are read."""
    await pool.put(record=message(pool.epoch, queued_tokens=900, **{name: bad}))

    pressure = await pool.read()

    assert pressure.signal(name) is None
    assert pressure.signal("queued_tokens") == 900
    assert pressure.bad_signals == (name,)
    assert pool.faults == {f"signal {name}": 1}


async def test_a_signal_that_is_missing_is_unknown_and_no_fault(pool):
    """A worker that does not measure something says so with None, or with a shorter record."""
    values = msgspec.msgpack.decode(message(pool.epoch, prepare_queue_depth=4))
    await pool.put(record=msgspec.msgpack.encode(values[: len(IDENTITY) + 1]))

    pressure = await pool.read()

    assert pressure.signal("prepare_queue_depth") == 4
    assert pressure.signal("inflight") is None
    assert pool.faults == {}


WHOLE = encode_record(PressureRecord(epoch=7, sequence=1, inflight=3))
BAD_RECORDS = {
    "missing": (None, "missing"),
    "empty": (b"", "does not decode"),
    "truncated": (WHOLE[:-1], "does not decode"),
    "one byte": (WHOLE[:1], "does not decode"),
    "trailing": (WHOLE + WHOLE, "does not decode"),
    "10 MB": (b"\x00" * 10_000_000, "too large"),
    "10 MB of record": (b"\xdd\x00\x98\x96\x80" + b"\x01" * 10_000_000, "too large"),
    "1 025 bytes": (b"\x00" * 1025, "too large"),
    "JSON": (b'{"inflight": 0}', "does not decode"),
    "text": ("unknown", "does not decode"),
    "pickle": (b"\x80\x04K\x00.", "does not decode"),
    "map": (msgspec.msgpack.encode({"inflight": 0}), "does not decode"),
    "deep": (b"\x91" * 1000 + b"\xc0", "does not decode"),
    "next schema": (message(7, schema=2, inflight=0), "schema"),
    "last schema": (message(7, schema=0, inflight=0), "schema"),
    "no schema": (message(7, schema=None, inflight=0), "schema"),
    "no identity": (msgspec.msgpack.encode([1, 0, 0, 0]), "identity"),
    "nothing": (msgspec.msgpack.encode([]), "identity"),
}


@pytest.mark.parametrize(("raw", "fault"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
async def test_a_bad_record_makes_that_one_instance_unknown(pool, raw, fault):
    """The instance still lives, nothing of it is known, and the reason is counted once for three views."""
    await pool.put(record=raw)

    pressure = await pool.read()

    assert pressure.record is None
    assert pressure.signal("inflight") is None
    assert pressure.fault == fault
    assert pool.faults == {fault: 1}


@pytest.mark.parametrize(
    ("published_us", "fault"),
    [
        (None, "no publishing time"),
        ("", "no publishing time"),
        ("yesterday", "no publishing time"),
        ("nan", "no publishing time"),
        ("inf", "no publishing time"),
        ("-1", "no publishing time"),
        ("1_700", "no publishing time"),
        ("1.7e15", "no publishing time"),
        (b"\xff\xfe", "no publishing time"),
        ("9" * 17, "no publishing time"),
        ("9" * 400, "no publishing time"),
        ("9" * 10_000_000, "no publishing time"),
        ("0", "expired"),
        ("1700000000000000", "expired"),
        ("9" * 16, "published in the future"),
    ],
)
async def test_a_bad_publishing_time_makes_that_one_instance_unknown(pool, published_us, fault):
    """A record of unknown or impossible age says nothing about now."""
    await pool.put(published_us=published_us)

    pressure = await pool.read()

    assert pressure.record is None
    assert pressure.fault == fault
    assert pool.faults == {fault: 1}


async def test_a_key_of_another_type_makes_that_one_instance_unknown(pool):
    """A list in place of the hash spoils no other instance."""
    await pool.put_other_type()

    pressure = await pool.read()

    assert pressure.record is None
    assert pressure.fault == "not a hash"
    assert pool.faults == {"not a hash": 1}


@pytest.mark.parametrize("fields", [None, {"tokens": "-5", "requests": "nan", "oldest": "inf", "r:x": "1;y", "r:": ""}])
async def test_rubbish_in_place_of_the_reservations_spoils_no_reading(pool, fields):
    """What is in transit is then taken for nothing, and the record is read as ever."""
    await pool.put_reserved(fields)

    pressure = await pool.read()

    assert pressure.signal("inflight") == 3
    assert pool.faults == {}


async def test_a_record_of_another_epoch_is_unknown_and_no_fault(pool):
    """During a take-over that is the ordinary course of things."""
    await pool.put(record=message(pool.epoch + 1, inflight=0))

    pressure = await pool.read()

    assert pressure.fault == "epoch of another worker"
    assert pool.faults == {}


async def test_each_new_bad_record_is_counted(pool):
    """A worker that goes on writing rubbish is seen to go on."""
    for number in range(5):
        await pool.put(record=message(pool.epoch, inflight=-1 - number))
        await pool.read()

    assert pool.faults == {"signal inflight": 5}


async def test_a_good_record_after_a_bad_one_is_believed(pool):
    """A fault leaves nothing behind but its count."""
    await pool.put(record=b"\xc1")
    await pool.read()

    await pool.put(record=message(pool.epoch, inflight=8))

    assert (await pool.read()).signal("inflight") == 8
    assert pool.faults == {"does not decode": 1}


@pytest.mark.parametrize(
    ("instance", "value"),
    [
        ("other", b"rubbish"),
        ("other", b""),
        ("other", b"7;9999999999999999;" + b"\xc1"),
        ("other", b"7;9999999999999999;\x81\xa1x" + b"\x91" * 1500 + b"\xc0"),
        ("other", b"inf;inf;" + encode_registration(registration())),
        ("other", b"7;8;" + b"\x00" * 10_000_000),
        (b"\xff\xfe", b"7;9999999999999999;" + encode_registration(registration())),
        ("not a name}", b"7;9999999999999999;" + encode_registration(registration())),
        ("", b"7;9999999999999999;" + encode_registration(registration())),
        ("x" * 100_000, b"7;9999999999999999;" + encode_registration(registration())),
    ],
)
async def test_a_bad_registration_adds_no_instance(pool, instance, value):
    """What is no entry is counted, and the pool is as it was."""
    await pool.put_entry(instance, value)

    await pool.read()

    assert pool.faults == {"registration": 1}
