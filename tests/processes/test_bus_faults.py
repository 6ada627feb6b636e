import asyncio
import contextlib
import os
import signal

import msgspec
import pytest
import redis.asyncio as redis_asyncio

from bus.keys import pressure_key
from bus.record import PressureRecord
from deploy.embedded import EmbeddedServer
from tests.processes.fleet import Fleet, fetch, until
from tests.processes.traffic import Traffic
from tests.servers import bus_command

pytestmark = pytest.mark.processes

KEY = pressure_key("default", "i1")
SILENT = "the bus does not answer"
NAMES = PressureRecord.__struct_fields__

#: Values of a single signal that cannot be true.
BAD_SIGNALS = {
    "NaN": ("kv_usage", float("nan")),
    "infinity": ("decode_step_ms", float("inf")),
    "minus infinity": ("qps_1m", float("-inf")),
    "negative": ("inflight", -1),
    "bool": ("queued_tokens", True),
    "string": ("predicted_total_backlog_ms", "soon"),
}

#: What makes the whole record unknown, made of the bytes of a good one, and the reason that is shown.
BAD_RECORDS = {
    "truncated": (lambda raw: raw[:20], "does not decode"),
    "not MessagePack": (lambda _: b"\xc1" * 40, "does not decode"),
    "text": (lambda _: b"0", "does not decode"),
    "another version": (lambda raw: msgspec.msgpack.encode([99, *msgspec.msgpack.decode(raw)[1:]]), "schema"),
    "no identity": (lambda raw: msgspec.msgpack.encode([1, None, *msgspec.msgpack.decode(raw)[2:]]), "identity"),
    "10 MB": (lambda _: b"\x93" * 10_000_000, "too large"),
}


@pytest.fixture(scope="module")
def fleet(start_fleet) -> Fleet:
    """Give two instances and two replicas on a bus whose port stays the same over its restarts."""
    return start_fleet(engine=["--speed", "20"])


@pytest.fixture
async def bus(fleet):
    """Give a client of the bus."""
    client = redis_asyncio.Redis.from_url(fleet.bus.url)
    yield client
    await client.aclose()


@contextlib.asynccontextmanager
async def stored(bus, make):
    """Keep something bad in the record of i1: its worker writes a good one at every change."""
    is_over = False  # not a cancellation: redis-py loses one that meets the server's answer

    async def keep() -> None:
        while not is_over:
            raw = await bus.hget(KEY, "record")
            if raw is not None and len(raw) > 60 and len(raw) < 1000:
                with contextlib.suppress(msgspec.DecodeError, IndexError):
                    await bus.hset(KEY, "record", make(raw))
            await asyncio.sleep(0.002)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        is_over = True
        await task


async def seen(replica, condition) -> dict:
    """Give the load of i1 as soon as it fulfils a condition."""

    def look() -> dict | None:
        load = replica.loads()["i1"]
        return load if condition(load) else None

    return await asyncio.to_thread(until, look, "the bad value is seen")


@pytest.mark.parametrize("name", BAD_SIGNALS)
async def test_a_signal_that_cannot_be_true_is_unknown_and_counted(http, fleet, bus, name):
    """While traffic flows one bad number makes that one signal null, is counted, and costs no request."""
    signal_name, value = BAD_SIGNALS[name]

    def spoilt(raw: bytes) -> bytes:
        values = msgspec.msgpack.decode(raw)
        values[NAMES.index(signal_name)] = value
        return msgspec.msgpack.encode(values)

    before = [replica.metric("forebay_unknown_signals_total", pool="default") for replica in fleet.replicas]
    async with Traffic(http, fleet) as traffic, stored(bus, spoilt):
        for replica in fleet.replicas:
            load = await seen(replica, lambda load: signal_name in load["unbelievable"])
            assert load["signals"][signal_name]["value"] is None
            assert load["signals"]["active_prepare"]["value"] is not None
        await traffic.more(10)
    after = [replica.metric("forebay_unknown_signals_total", pool="default") for replica in fleet.replicas]
    assert all(now > then for now, then in zip(after, before, strict=True))
    await asyncio.to_thread(fleet.wait)


@pytest.mark.parametrize("name", BAD_RECORDS)
async def test_a_record_that_cannot_be_read_is_unknown_and_counted(http, fleet, bus, name):
    """While traffic flows bytes that are no record make all signals null, are counted, and cost no request."""
    make, reason = BAD_RECORDS[name]
    counts = [r.metric("forebay_unknown_signals_total", reason=reason) for r in fleet.replicas]
    async with Traffic(http, fleet) as traffic, stored(bus, make):
        for replica in fleet.replicas:
            load = await seen(replica, lambda load: load["reason"] == reason)
            assert {each["value"] for each in load["signals"].values()} == {None}
            assert load["state"] == "unknown"
        await traffic.more(10)
    after = [r.metric("forebay_unknown_signals_total", reason=reason) for r in fleet.replicas]
    assert all(now > then for now, then in zip(after, counts, strict=True))
    await asyncio.to_thread(fleet.wait)


async def test_a_bus_that_is_killed_and_comes_back_empty_costs_no_request(http, fleet):
    """Through the death of the bus, its absence and its return every request is answered, at its usual speed."""
    async with Traffic(http, fleet) as traffic:
        await traffic.more(20)
        port = fleet.bus.port
        os.kill(fleet.bus.pid, signal.SIGKILL)
        await asyncio.to_thread(fleet.bus.stop)
        for replica in fleet.replicas:
            await asyncio.to_thread(until, lambda r=replica: r.bus_state() == "blind", "it is known to be gone")
        await traffic.more(40)
        fleet.bus = EmbeddedServer(port=port)
        async with asyncio.timeout(30):
            for step_s in fleet.bus.starting():  # not in a thread: the server would end with it
                await asyncio.sleep(step_s)
        for replica in fleet.replicas:
            await asyncio.to_thread(until, lambda r=replica: r.bus_state() == "fresh", "it is known to be back")
        await asyncio.to_thread(fleet.wait)
        await traffic.more(20)
    assert traffic.slowest_s < 2.0
    await asyncio.to_thread(fleet.wait_until_idle)


async def test_a_bus_that_hangs_for_two_seconds_costs_no_request(http, fleet):
    """While the bus accepts connections and answers nothing all requests are answered; each process says it once."""
    parts = (*fleet.replicas, *fleet.workers.values())
    before = [part.text.count(SILENT) for part in parts]
    async with Traffic(http, fleet) as traffic:
        os.kill(fleet.bus.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2)  # the length of the outage, not a wait for anything
            await traffic.more(1)
            during = traffic.answered
        finally:
            os.kill(fleet.bus.pid, signal.SIGCONT)
        await asyncio.to_thread(fleet.wait)
        await traffic.more(20)
    assert during > 20
    assert traffic.slowest_s < 2.0
    await asyncio.to_thread(fleet.wait_until_idle)
    for part, count in zip(parts, before, strict=True):
        assert "Traceback" not in part.text
        assert 1 <= part.text.count(SILENT) - count <= 3, f"{part.name}: changes of state, not every failure"


#: How a bus refuses, and how it stops refusing; the second also where the first has taken hold.
REFUSALS = {
    "out of memory": ([("CONFIG", "SET", "maxmemory", "1")], [("CONFIG", "SET", "maxmemory", "0")]),
    "another password": (
        [("CONFIG", "SET", "requirepass", "new"), ("CLIENT", "KILL", "TYPE", "normal")],
        [("AUTH", "new"), ("CONFIG", "SET", "requirepass", "")],
    ),
}


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_bus_that_refuses_costs_no_request_and_each_process_says_so_once(http, fleet, how):
    """/ready says how the replica sees, until it goes blind and back; each change of state is one line of the log."""
    refuse, heal = REFUSALS[how]
    parts = list(fleet.workers.values())
    before = {part.name: (part.text.count(SILENT), part.text.count("answers again")) for part in parts}

    def ready(replica) -> tuple[int, str]:
        status, body = fetch(f"{replica.admin_url}/ready")
        return status, msgspec.json.decode(body)["bus"]["default"]

    for replica in fleet.replicas:
        assert await asyncio.to_thread(ready, replica) == (200, "fresh")
    async with Traffic(http, fleet) as traffic:
        await asyncio.to_thread(bus_command, fleet.bus.port, *refuse)
        try:
            for replica in fleet.replicas:
                what = f"{replica.name} knows nothing more"
                await asyncio.to_thread(
                    until, lambda r=replica: {each["state"] for each in r.loads().values()} == {"unknown"}, what
                )
                status, state = await asyncio.to_thread(ready, replica)
                assert status == 200
                assert state == ("blind" if how == "another password" else "fresh")  # reads are still answered
            await traffic.more(20)
        finally:
            await asyncio.to_thread(bus_command, fleet.bus.port, *heal)
        for replica in fleet.replicas:
            await asyncio.to_thread(until, lambda r=replica: ready(r) == (200, "fresh"), f"{replica.name} sees again")
        await asyncio.to_thread(fleet.wait)
        await traffic.more(20)
    for part in parts:
        silent, again = before[part.name]
        assert (part.text.count(SILENT) - silent, part.text.count("answers again") - again) == (1, 1), part.text
    await asyncio.to_thread(fleet.wait_until_idle)
