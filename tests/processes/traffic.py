"""Requests one after the other, for as long as an `async with` lasts; a single one that fails, fails the test."""

import asyncio
from typing import Any

import aiohttp

from tests.processes.fleet import Fleet

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "How deep is it?"}], "max_tokens": 4}


class Traffic:
    """`lanes` requests at once through each replica, every second lane streamed; nothing is sent a second time.

    `models` are asked for in turn.
    """

    def __init__(
        self, http: aiohttp.ClientSession, fleet: Fleet, *, lanes: int = 1, models: tuple[str, ...] = ("sim",)
    ) -> None:
        self.http = http
        self.fleet = fleet
        self.lanes = lanes
        self.models = models
        self.answered = 0
        self.slowest_s = 0.0
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Traffic":
        urls = [f"{replica.url}/v1/chat/completions" for replica in self.fleet.replicas]
        self.tasks = [asyncio.create_task(self.run(url, lane)) for url in urls for lane in range(self.lanes)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result

    async def run(self, url: str, lane: int) -> None:
        """Ask, and ask again."""
        clock = asyncio.get_running_loop().time
        ask = self.stream if lane % 2 else self.plain
        body = {**CHAT, "model": self.models[lane // 2 % len(self.models)]}
        while True:
            began_s = clock()
            await ask(url, body)
            self.answered += 1
            self.slowest_s = max(self.slowest_s, clock() - began_s)

    async def plain(self, url: str, body: dict[str, Any]) -> None:
        """One answer in one piece, whole."""
        async with self.http.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["usage"]["completion_tokens"] == 4

    async def stream(self, url: str, body: dict[str, Any]) -> None:
        """One answer in pieces, without an error event and to its end."""
        async with self.http.post(url, json={**body, "stream": True}) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            assert '"error"' not in text, text
            assert text.endswith("data: [DONE]\n\n"), text

    async def more(self, count: int) -> None:
        """Wait until so many more have been answered."""
        goal = self.answered + count
        async with asyncio.timeout(30):
            while self.answered < goal:
                assert not any(task.done() for task in self.tasks)
                await asyncio.sleep(0.01)
