import asyncio
import contextlib
import re
from importlib import resources

import pytest
import redis.exceptions

from bus.errors import BusUnavailable
from bus.keys import instances_key, pressure_key, reserved_key
from bus.record import LARGEST, MAX_RECORD_BYTES
from bus.registration import MAX_ENTRY_BYTES
from bus.scripts import Script, lua_source

#: Every script there is; the prelude stands before each of them.
LUA = resources.files("bus") / "lua"
NAMES = tuple(sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name != "prelude.lua"))
PRESSURE, INSTANCES, RESERVED = pressure_key("default", "a"), instances_key("default"), reserved_key("default", "a")

#: What Lua takes for a number, or would, and no count of milliseconds is.
NO_INTEGER = ("", "abc", "nan", "-nan", "inf", "-inf", "1.5", "-1", "1e300", "1e18", "9007199254740992", "1 2")


class Scripts:
    """The scripts on one server, called with one good set of arguments, some of them replaced."""

    def __init__(self, client) -> None:
        self._scripts = {name: Script(client, name) for name in NAMES}

    async def publish(self, *, record=b"r", epoch=7, sequence=1, ttl_ms=1500, instance="a"):
        """Publish for instance a."""
        keys = (PRESSURE, INSTANCES, RESERVED)
        return await self._scripts["publish"](keys, (record, epoch, sequence, ttl_ms, instance))

    async def register(self, *, instance="a", epoch=0, lifetime_ms=30_000, remembered_ms=600_000, payload=b"p"):
        """Register instance a."""
        keys = (INSTANCES, PRESSURE)
        return await self._scripts["register"](keys, (instance, epoch, lifetime_ms, remembered_ms, payload))

    async def read(self, *instances):
        """Read the registrations and the pressure of some instances."""
        keys = [INSTANCES]
        for instance in instances:
            keys += (pressure_key("default", instance), reserved_key("default", instance))
        return await self._scripts["read_pool"](keys, (1, MAX_RECORD_BYTES, MAX_ENTRY_BYTES))

    async def call(self, name, keys, args):
        """Call a script with whatever arguments."""
        return await self._scripts[name](keys, args)


@pytest.fixture
def scripts(bus):
    """Give the scripts on each server."""
    return Scripts(bus.client)


# --- the text of the scripts


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_built_from_KEYS_only(name):
    """No script names a key by itself: Redis Cluster would not know where to run it."""
    code = re.sub(r"--.*", "", lua_source(name))

    assert "forebay" not in code
    keys_used = set(re.findall(r"redis\.p?call\('[A-Z]+', ([^,)]+)", code))
    assert keys_used
    assert all(key == "key" or key.startswith("KEYS[") for key in keys_used)
    assert not re.search(r"\bkey\s*=(?!=)", code)  # `key` is a parameter, or one of KEYS
    assert set(re.findall(r"local key\b.*= ([^,\n]+)", code)) <= {"KEYS[best]"}


@pytest.mark.parametrize("name", NAMES)
def test_no_script_needs_more_than_redis_7_0(name):
    """Only commands and modules that Redis 7.0 and fakeredis both have are used."""
    code = re.sub(r"--.*", "", lua_source(name))

    assert not code.startswith("#!")
    commands = set(re.findall(r"redis\.p?call\('([A-Z]+)'", code))
    assert commands <= {
        "TIME",
        "HGET",
        "HMGET",
        "HSET",
        "HSTRLEN",
        "HGETALL",
        "HDEL",
        "HRANDFIELD",
        "PEXPIRE",
        "PTTL",
    } | {
        "HEXISTS",
        "HINCRBY",
        "DEL",
        "ZADD",
        "ZCARD",
        "ZREM",
        "ZREMRANGEBYSCORE",
        "ZSCORE",
    }
    assert not re.search(r"\b(cjson|cmsgpack|struct|bit|os|loadstring)\b|redis\.(sha1hex|setresp|acl)", code)


@pytest.mark.parametrize("name", NAMES)
def test_no_script_turns_a_time_or_an_epoch_into_text_by_itself(name):
    """Lua's own text of a number above 2**53, or of any large one, loses digits: only '%.0f' is used."""
    code = re.sub(r"--.*", "", lua_source(name))

    assert "tostring" not in code
    assert set(re.findall(r"string\.format\('([^']+)'", code)) <= {"%.0f", "%.17g"}


async def test_no_script_touches_a_global_that_does_not_exist(real_bus):
    """A real server refuses undefined globals; every branch is run there once."""
    scripts = Scripts(real_bus.client)
    await scripts.register(epoch=5)
    await scripts.register(epoch=0)
    await scripts.register(epoch=5)
    await scripts.register(instance="b", lifetime_ms=0, remembered_ms=1)
    await scripts.publish(epoch=LARGEST)
    await scripts.publish(epoch=1)
    await scripts.read("a", "b")
    for bad in ({"epoch": "x"}, {"ttl_ms": 0}):
        with pytest.raises(BusUnavailable, match="must be"):
            await scripts.publish(**bad)
    for bad in ({"epoch": "x"}, {"epoch": 0}):  # the second: 2**53 - 1 stands, nothing is above it
        with pytest.raises(BusUnavailable, match=r"must be|largest"):
            await scripts.register(**bad)


async def test_a_script_that_the_server_forgot_is_loaded_again(real_bus):
    """A restarted server knows no script; the next call goes through all the same."""
    scripts = Scripts(real_bus.client)
    await scripts.register()

    await real_bus.empty()

    assert (await scripts.register())[0] == 1


class SwallowsCancellation:
    """A client whose command, when it is cancelled, ends with `outcome` instead."""

    def __init__(self, outcome) -> None:
        self.outcome = outcome
        self.is_waiting = asyncio.Event()

    async def execute_command(self, *_):
        """Wait to be cancelled, and then do as if nothing had been."""
        self.is_waiting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize("outcome", [[1, 1], redis.exceptions.ConnectionError("reset")])
async def test_a_cancellation_that_meets_the_answer_is_not_lost(outcome):
    """The library may swallow a cancellation in the instant in which it is done; the script call still ends by it."""
    client = SwallowsCancellation(outcome)
    call = asyncio.create_task(Script(client, "publish")((PRESSURE, INSTANCES, RESERVED), ("r", 7, 1, 1500, "a")))
    async with asyncio.timeout(10):
        await client.is_waiting.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_task_that_was_cancelled_can_still_say_goodbye(scripts):
    """A script called while a cancelled task cleans up is answered as ever."""
    answers, is_waiting = [], asyncio.Event()

    async def work():
        try:
            is_waiting.set()
            await asyncio.Event().wait()
        finally:
            answers.append(await scripts.register())

    task = asyncio.create_task(work())
    await is_waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert answers[0][0] == 1


# --- arguments


@pytest.mark.parametrize("bad", ["0", *NO_INTEGER, str(LARGEST + 2)])
async def test_publish_refuses_a_bad_ttl_before_it_writes(scripts, bus, bad):
    """No record is left without an end."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(ttl_ms=bad)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("bad", NO_INTEGER)
@pytest.mark.parametrize("name", ["epoch", "sequence"])
async def test_publish_refuses_a_bad_fencing_number_before_it_writes(scripts, bus, name, bad):
    """What is stored can always be compared with what comes next."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(**{name: bad})

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("empty", [{"record": b""}, {"instance": ""}, {"epoch": 0}])
async def test_publish_refuses_what_is_missing(scripts, bus, empty):
    """An empty record, an empty instance and an epoch that nobody was given are not stored."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(**empty)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("bad", NO_INTEGER)
@pytest.mark.parametrize("name", ["epoch", "lifetime_ms", "remembered_ms"])
async def test_register_refuses_a_bad_number_before_it_writes(scripts, bus, name, bad):
    """No hash of registrations is left without an end, and no entry that cannot be read."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.register(**{name: bad})

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("empty", [{"instance": ""}, {"payload": b""}, {"remembered_ms": 0}])
async def test_register_refuses_what_is_missing(scripts, bus, empty):
    """An entry has a name, a payload and an end."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.register(**empty)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("name", ["publish", "register"])
@pytest.mark.parametrize("count", range(5))
async def test_missing_arguments_are_refused_before_anything_is_written(scripts, bus, name, count):
    """Too few arguments are an error, and no half of an entry."""
    keys = (PRESSURE, INSTANCES, RESERVED) if name == "publish" else (INSTANCES, PRESSURE)

    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.call(name, keys, ("a", 7, 1, 1500, "p")[:count])

    assert await bus.client.dbsize() == 0


async def test_every_key_has_an_end(scripts, bus):
    """After a registration and a record nothing stands forever."""
    await scripts.register()
    await scripts.publish(epoch=2**52)

    keys = await bus.client.keys("*")

    assert set(keys) == {PRESSURE.encode(), INSTANCES.encode()}
    assert 0 < await bus.client.pttl(PRESSURE) <= 1500
    assert 600_000 < await bus.client.pttl(INSTANCES) <= 630_000


async def test_a_renewal_with_a_shorter_life_does_not_shorten_the_memory_of_others(scripts, bus):
    """The hash lives as long as its longest entry asked for."""
    await scripts.register(instance="long", lifetime_ms=60_000)

    await scripts.register(instance="short", lifetime_ms=0)

    assert await bus.client.pttl(INSTANCES) > 650_000


# --- fencing


async def test_a_newer_epoch_wins_and_an_older_one_is_told_by_whom(scripts):
    """The refusal names the epoch that owns the instance."""
    assert (await scripts.publish(epoch=8))[0] == 1

    assert await scripts.publish(epoch=7) == [0, b"8"]
    assert (await scripts.publish(epoch=9))[0] == 1


async def test_epochs_are_compared_as_numbers(scripts):
    """9 is less than 10, though not as text."""
    assert (await scripts.publish(epoch=9, sequence=9))[0] == 1
    assert (await scripts.publish(epoch=9, sequence=10))[0] == 1
    assert (await scripts.publish(epoch=10, sequence=1))[0] == 1
    assert await scripts.publish(epoch=9, sequence=11) == [0, b"10"]


@pytest.mark.parametrize("sequence", [3, 2, 0])
async def test_a_record_that_comes_late_is_not_stored(scripts, bus, sequence):
    """Of one worker's records the one with the higher number stays."""
    await scripts.publish(record=b"newer", sequence=3)

    assert await scripts.publish(record=b"older", sequence=sequence) == [0, b"7"]
    assert await bus.client.hget(PRESSURE, "record") == b"newer"


async def test_the_largest_epochs_are_told_apart(scripts, bus):
    """2**53 - 1 and 2**53 - 2 go through Lua and back to the last digit."""
    await scripts.publish(epoch=LARGEST, sequence=LARGEST)

    assert await bus.client.hget(PRESSURE, "epoch") == str(LARGEST).encode()
    assert await bus.client.hget(PRESSURE, "sequence") == str(LARGEST).encode()
    assert await scripts.publish(epoch=LARGEST - 1) == [0, str(LARGEST).encode()]
    assert await scripts.register(epoch=LARGEST - 1) == [0, str(LARGEST).encode()]
    assert await scripts.register(epoch=LARGEST) == [1, str(LARGEST).encode()]


async def test_claims_at_once_get_different_epochs(bus):
    """Twenty workers that claim one instance in the same instant are told apart."""
    many = [Scripts(bus.connect()) for _ in range(20)]

    answers = await asyncio.gather(*(each.register() for each in many))

    assert all(is_stored == 1 for is_stored, _ in answers)
    assert len({epoch for _, epoch in answers}) == 20


async def test_a_claim_is_above_everything_that_is_stored(scripts):
    """Neither the registration nor the record of an earlier worker can refuse a new one."""
    _, first = await scripts.register()
    await scripts.publish(epoch=int(first) + 1_000_000_000)

    _, second = await scripts.register()

    assert int(second) == int(first) + 1_000_000_001
    assert (await scripts.publish(epoch=int(second)))[0] == 1


async def test_epochs_grow_across_a_loss_of_all_data(scripts, bus):
    """The server's time stands in for what FLUSHALL took."""
    _, before = await scripts.register()
    await bus.client.flushall()

    _, after = await scripts.register()

    assert int(after) > int(before)


async def test_an_older_worker_is_refused_while_the_newer_ones_registration_stands(scripts, bus):
    """The record of the newer worker has expired; its registration still fences the older one off."""
    _, older = await scripts.register()
    _, newer = await scripts.register()
    await scripts.publish(epoch=int(newer))
    await bus.client.delete(PRESSURE)  # as its expiry does

    assert await scripts.publish(epoch=int(older)) == [0, newer]
    assert await scripts.register(epoch=int(older)) == [0, newer]


async def test_publish_says_whether_a_living_registration_stands(scripts, bus):
    """Missing, expired and another worker's registration all mean: register again."""
    _, epoch = await scripts.register()
    assert await scripts.publish(epoch=int(epoch), sequence=1) == [1, 1, 0]

    await scripts.register(epoch=int(epoch), lifetime_ms=0)
    assert await scripts.publish(epoch=int(epoch), sequence=2) == [1, 0, 0]

    await bus.client.delete(INSTANCES)
    assert await scripts.publish(epoch=int(epoch), sequence=3) == [1, 0, 0]

    await scripts.register(epoch=int(epoch))
    assert await scripts.publish(epoch=int(epoch) + 1, sequence=4) == [1, 0, 0]


RUBBISH = ["", "abc", "nan", "inf", "-inf", "-5", "1.5", "9" * 30, str(2**53), "0x"]


@pytest.mark.parametrize("rubbish", RUBBISH)
async def test_rubbish_in_place_of_an_epoch_locks_nobody_out(scripts, bus, rubbish):
    """What no worker wrote neither refuses a worker nor spoils the next epoch."""
    await bus.client.hset(PRESSURE, mapping={"epoch": rubbish, "sequence": rubbish})
    await bus.client.hset(INSTANCES, "a", f"{rubbish};{rubbish};payload")

    is_stored, epoch = await scripts.register()

    assert is_stored == 1
    assert 0 < int(epoch) <= LARGEST
    assert await scripts.publish(epoch=int(epoch)) == [1, 1, 0]


# --- memory and purge


async def test_an_expired_entry_is_remembered_and_one_long_expired_is_purged(scripts, bus):
    """Ten minutes after its end an entry goes with some renewal of another instance, not before."""
    now_us = await _server_us(bus)
    for age_s in (599, 601):
        await bus.client.hset(INSTANCES, f"{age_s}", f"7;{now_us - age_s * 1_000_000};payload")
    await bus.client.hset(INSTANCES, "rubbish", "rubbish")

    for _ in range(3):  # each looks at four of at most four
        await scripts.register(instance="b")

    assert set(await bus.client.hkeys(INSTANCES)) == {b"b", b"599"}


async def test_many_long_gone_entries_go_by_and_by(scripts, bus):
    """Renewals clear a hash of a hundred dead instances, a few each time."""
    old_us = await _server_us(bus) - 700_000_000
    await bus.client.hset(INSTANCES, mapping={f"i{number}": f"7;{old_us};p" for number in range(100)})

    for _ in range(400):
        await scripts.register(instance="b")
        if await bus.client.hlen(INSTANCES) == 1:
            break

    assert await bus.client.hkeys(INSTANCES) == [b"b"]


# --- reading


async def test_the_server_stamps_the_record_with_its_own_time(scripts, bus):
    """The time of publishing lies between two readings of the server's clock, to the microsecond."""
    before_us = await _server_us(bus)
    await scripts.publish()
    after_us = await _server_us(bus)

    assert before_us <= int(await bus.client.hget(PRESSURE, "published_us")) <= after_us


async def test_a_key_of_another_type_spoils_only_its_own_instance(scripts, bus):
    """The others are read as if nothing were wrong."""
    await scripts.publish(record=b"mine")
    await bus.client.set(pressure_key("default", "b"), "no hash")

    _, _, _, a, b, c = await scripts.read("a", "b", "c")

    assert a[0] == b"mine"
    assert b[:3] == [None, None, -1]
    assert c[:3] == [None, None, 0]


async def test_what_is_too_large_is_not_sent(scripts, bus):
    """Of ten megabytes in place of a record, of its time or of a registration nothing reaches the reader."""
    large = b"x" * 10_000_000
    await bus.client.hset(PRESSURE, mapping={"record": large, "published_us": large})
    await bus.client.hset(INSTANCES, mapping={"a": large, "b": b"7;8;p", b"y" * 100_000: b"7;8;p"})

    _, _, registrations, pressure = await scripts.read("a")

    assert pressure[:3] == [None, b"", len(large)]
    assert dict(zip(registrations[::2], registrations[1::2], strict=True)) == {b"a": b"", b"b": b"7;8;p", b"": b"7;8;p"}


async def test_reading_writes_nothing(scripts, bus):
    """A pool that nobody serves leaves no key behind."""
    await scripts.read("a", "b")

    assert await bus.client.dbsize() == 0


async def test_a_servers_complaint_is_translated_once(scripts):
    """Callers know one error, which names the script and carries the library's as its cause."""
    with pytest.raises(BusUnavailable, match=r"^publish: ResponseError: .*ttl_ms must be integers") as fault:
        await scripts.publish(epoch="none")

    assert isinstance(fault.value.__cause__, redis.exceptions.ResponseError)


async def _server_us(bus) -> int:
    seconds, microseconds = await bus.client.time()
    return int(seconds) * 1_000_000 + int(microseconds)
