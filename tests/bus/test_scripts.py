import asyncio
import contextlib
import re

import pytest
import redis.exceptions

from bus.errors import BusUnavailable
from bus.keys import pressure_key
from bus.record import LARGEST
from bus.scripts import Script, lua_source
from tests.bus.calls import NAMES, Scripts, _server_us
from tests.bus.worker import INSTANCES, PRESSURE, RESERVED

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

    assert set(re.findall(r"tostring\(.*?\)", code)) <= {"tostring(reply.err)"}, "a text, or what stands for one"
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
