import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import pytest

from deploy.engine.batching import EngineModel
from deploy.engine.config import EngineConfig
from deploy.engine.server import SimulatedEngine
from deploy.ports import free_ports
from tests.chaos.ledger import Call, Ledger, Verdict
from tests.chaos.load import OUTPUT_TOKENS, PROMPT_TOKENS, Load, rate_per_s, trace

HOST = "127.0.0.1"


def test_every_part_of_the_load_is_as_heavy_as_the_whole_in_time():
    """Wherever a seed begins, any hundred requests take about a hundred seconds, with bursts between them."""
    for first in (0, 1234):
        rows = trace(first)
        assert len(rows) == 2000
        assert rows[-1].at_s == pytest.approx(2000)
        assert all(rows[n + 99].at_s - rows[n].at_s == pytest.approx(100, abs=25) for n in range(0, 2000, 100))
        assert min(after.at_s - before.at_s for before, after in pairwise(rows)) < 0.2
    assert {row.prompt_tokens for row in trace(0)} == {row.prompt_tokens for row in trace(1234)}
    assert max(row.prompt_tokens for row in rows) == PROMPT_TOKENS
    assert max(row.output_tokens for row in rows) == OUTPUT_TOKENS


def test_a_share_of_capacity_follows_the_engines():
    """Twice the engines, or engines twice as fast, take twice as much."""
    one = rate_per_s(0.5, [EngineModel()])
    assert rate_per_s(0.5, [EngineModel()] * 2) == pytest.approx(2 * one)
    assert rate_per_s(0.5, [EngineModel(speed=2.0)]) == pytest.approx(2 * one)
    assert rate_per_s(1.0, [EngineModel()]) == pytest.approx(2 * one)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def closes_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the connection without having read."""
    writer.transport.abort()


async def reads_and_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a request, and say nothing."""
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Give the URL of a replica that does this."""
    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def engine_url() -> AsyncIterator[str]:
    """Give the URL of something that answers."""
    engine = SimulatedEngine(EngineConfig(batching=EngineModel(speed=200.0)))
    await engine.start()
    try:
        yield engine.url
    finally:
        await engine.stop()


async def first_call(*urls: str) -> Call:
    """Send until a request is over, and give it."""
    load = Load(Ledger(), lambda: urls, per_s=20.0, seed=1)
    async with load.running(), asyncio.timeout(10):
        while not load.ledger.calls or load.ledger.calls[0].ended_s is None:  # noqa: ASYNC110 - the ledger has no events
            await asyncio.sleep(0.01)
    return load.ledger.calls[0]


async def test_a_refused_connection_goes_elsewhere_and_costs_nothing():
    """Nothing was sent to who is down."""
    async with engine_url() as good:
        call = await first_call(f"http://{HOST}:{free_ports(1)[0]}", good)
    assert (call.status, call.refused, call.dropped_by) == (200, 1, [])
    assert Ledger().verdict(call) is Verdict.ANSWERED


@pytest.mark.parametrize("serve", [closes_at_once, reads_and_closes])
async def test_who_takes_a_request_and_drops_it_is_named(serve):
    """It is sent again, as a balancer does, and answered; the ledger knows who had it, and calls it lost."""
    async with serving(serve) as bad, engine_url() as good:
        call = await first_call(bad, good)
    assert (call.status, call.refused, call.dropped_by) == (200, 0, [bad])
    assert Ledger().verdict(call) is Verdict.LOST


async def test_what_nobody_takes_is_lost():
    """Every replica refuses: no answer began."""
    call = await first_call(*(f"http://{HOST}:{port}" for port in free_ports(2)))
    assert (call.status, call.refused) == (None, 2)
    assert Ledger().verdict(call) is Verdict.LOST
