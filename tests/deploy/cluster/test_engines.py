from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest
from aiohttp import web

from deploy.cluster.engines import without_model
from workers.config import InstanceConfig

HERE = InstanceConfig("here", "http://127.0.0.1:1")
GONE = InstanceConfig("gone", "http://127.0.0.1:2")


class Replica:
    """A page of loads that tells one thing after the other, the last of them for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self._pages: Sequence[dict[str, Sequence[str]]] = [{}]

    def tells(self, *pages: dict[str, Sequence[str]]) -> None:
        """Models by instance."""
        self._pages = pages

    async def answer(self, _: web.BaseRequest) -> web.StreamResponse:
        """The next page."""
        page = self._pages[min(self.asked, len(self._pages) - 1)]
        self.asked += 1
        return web.json_response(
            {"instances": [{"pool": "default", "id": name, "models": models} for name, models in page.items()]}
        )


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    """Serve the page."""
    one = Replica()
    runner = web.ServerRunner(web.Server(one.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


async def test_engines_that_name_a_model_are_waited_for_and_nothing_is_said(replica):
    """A worker has asked its engine within moments; as soon as all are there the wait is over."""
    replica.tells({}, {"here": [], "gone": ["m"]}, {"here": ["m"], "gone": ["m"]})

    async with aiohttp.ClientSession() as session:
        assert await without_model(session, replica.url, [HERE, GONE], patience_s=30.0) == []
    assert replica.asked == 3


async def test_an_engine_that_names_no_model_is_told_after_a_while(replica):
    """It is loading, its URL is none, or it wants a key; the others are not spoken of."""
    replica.tells({"here": ["m"], "gone": []})

    async with aiohttp.ClientSession() as session:
        assert await without_model(session, replica.url, [HERE, GONE], patience_s=0.0) == [GONE]


async def test_without_engines_of_ones_own_nobody_is_asked(replica):
    """Simulated engines are ours."""
    async with aiohttp.ClientSession() as session:
        assert await without_model(session, replica.url, [], patience_s=30.0) == []
    assert replica.asked == 0
