"""A worker of ours, its engine scripted byte by byte, and fakeredis for its bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from bus.hop.headers import RESERVATION
from tests.hop.scripted import Asked, Caller, Callers, Peer, Server, repeat, serve, until
from tests.servers import FakeBus
from workers.config import InstanceConfig, WorkerConfig
from workers.instance import Instance
from workers.process import Worker
from workers.timeline import Stage

__all__ = ["serve"]

Respond = Callable[[Peer, Asked], Awaitable[None] | None]

CHAT = "/v1/chat/completions"


def engine_script(respond: Respond, *, metrics: bytes = b"") -> Callable[[Peer], Awaitable[None]]:
    """An engine that lists its model and its metrics by itself; every POST goes to `respond`."""

    def answer(peer: Peer, asked: Asked) -> Awaitable[None] | None:
        if asked.method == "POST":
            return respond(peer, asked)
        if asked.target == "/v1/models":
            peer.answer(b'{"object":"list","data":[{"id":"tiny","object":"model"}]}')
        elif asked.target == "/metrics":
            peer.answer(metrics, kind="text/plain")
        else:
            peer.answer(b'{"detail":"Not Found"}', status="404 Not Found")
        return None

    return lambda peer: repeat(peer, answer)


class Site:
    """One worker with one instance before a scripted engine."""

    def __init__(self, engine: Server, callers: Callers, bus: FakeBus, worker: Worker) -> None:
        self.engine = engine
        self.bus = bus
        self.worker = worker
        self._callers = callers

    @property
    def instance(self) -> Instance:
        """The only instance."""
        return self.worker.instances[0]

    @property
    def url(self) -> str:
        """Where proxies dial."""
        return self.instance.worker_url

    @property
    def posts(self) -> list[Asked]:
        """What the engine was asked to do, its pages left out."""
        return [asked for asked in self.engine.asked if asked.method == "POST"]

    async def ask(
        self,
        body: bytes = b'{"model":"tiny"}',
        *,
        path: str = CHAT,
        is_stream: bool = True,
        strips: bool = False,
        terms: str = "",
        **headers: str,
    ) -> Caller:
        """Send a request as a proxy would."""
        ticket = f"r1;tokens=10;stream={int(is_stream)};strip={int(strips)}{terms}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._callers.ask(self.url, path, body, headers={RESERVATION: ticket, **named})

    async def dial(self) -> Caller:
        """Connect, and say nothing yet."""
        return await self._callers.dial(self.url)

    def counts(self) -> dict[str, int]:
        """Requests by stage, those without any left out."""
        timeline = self.instance.timeline
        return {stage.name: timeline.count(stage) for stage in Stage if timeline.count(stage)}

    async def reaches(self, **counts: int) -> None:
        """Wait until the requests stand in these stages."""
        await until(lambda: self.counts() == counts)

    def outcomes(self) -> dict[str, float]:
        """How requests have ended so far."""
        instance = self.instance.metrics
        return {outcome: child._value.get() for outcome, child in instance._outcomes.items()}

    async def comes_to_rest(self) -> None:
        """Wait until nothing is accepted, held or waiting, in any place that counts."""
        instance = self.instance
        await until(lambda: not len(instance.timeline))
        await until(lambda: instance.slot_gate.held == instance.prepare_gate.held == 0)
        assert instance.slot_gate.waiting == instance.prepare_gate.waiting == 0
        assert self.counts() == {}
        async with asyncio.timeout(1.0):
            await instance.drained()


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def site(serve, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeSite]:
    """Make workers before engines that answer POSTs by a script; in the end all of them have come to rest."""
    bus, callers = FakeBus(), Callers()
    monkeypatch.setattr("workers.process.connect", lambda *_, **__: bus.connect())
    sites: list[Site] = []

    async def make(respond: Respond, *, metrics: bytes = b"", engine_url: str = "", **settings: Any) -> Site:
        engine = await serve(engine_script(respond, metrics=metrics))
        config: dict[str, Any] = {
            "instances": (InstanceConfig("a", engine_url or engine.url),),
            "slots": 2,
            "scrape_interval_ms": 20,
            "drain_s": 0.05,
            **settings,
        }
        worker = Worker(WorkerConfig(**config))
        sites.append(Site(engine, callers, bus, worker))
        await worker.start()
        await until(lambda: worker.instances[0].publisher.published)
        return sites[-1]

    yield make
    callers.close()
    for one in sites:
        await one.comes_to_rest()
        await one.worker.stop()
    await bus.close()
