"""Fleets of real processes for a module, and the ends of their logs where a test fails."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from tests.processes.fleet import Fleet

StartFleet = Callable[..., Fleet]


@pytest.fixture(scope="module")
def start_fleet(tmp_path_factory) -> Iterator[StartFleet]:
    """Start fleets that live as long as the module."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Fleet(tmp_path_factory.mktemp("fleet"))).start(**options)


@pytest.fixture
def start_own_fleet(tmp_path) -> Iterator[StartFleet]:
    """Start a fleet that lives as long as the test, which takes it apart."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Fleet(tmp_path)).start(**options)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client that is patient for thirty seconds and makes a connection for every request."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the ends of all logs to the report of a failure."""
    report = yield
    if report.failed:
        for fleet in Fleet.running:
            report.sections += [(f"log of {name}", text) for name, text in fleet.tails()]
    return report
