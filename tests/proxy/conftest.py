"""A replica of ours before scripted workers, with fakeredis for its bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bus.publisher import Publisher
from bus.record import PressureRecord
from bus.registration import Registration
from proxy.access_log import AccessLine, AccessLog
from proxy.app import Replica
from proxy.config import ProxyConfig
from tests.hop.scripted import Asked, Caller, Callers, Peer, Server, repeat, serve, until
from tests.servers import FakeBus

__all__ = ["serve"]

Respond = Callable[[Peer, Asked], Awaitable[None] | None]

CHAT = "/v1/chat/completions"
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}]}'


class FakeWorker:
    """A scripted server, announced on the bus as the worker of one instance."""

    def __init__(self, bus: FakeBus, instance: str, server: Server, signals: Any, told: Any) -> None:
        self.server = server
        self.signals = signals
        told = {"ttl_ms": 60_000, **told}
        self.registration = Registration(worker_url=server.url, engine_url="http://127.0.0.1:9", **told)
        self.publisher = Publisher(
            bus.connect(),
            pool="default",
            instance=instance,
            make_record=self._record,
            registration=lambda: self.registration,
            on_superseded=lambda: None,
        )

    def _record(self, epoch: int, sequence: int) -> PressureRecord:
        return PressureRecord(epoch=epoch, sequence=sequence, **self.signals)

    @property
    def asked(self) -> list[Asked]:
        """What came to this worker."""
        return self.server.asked

    async def publish(self, **signals: float) -> None:
        """Say other numbers."""
        self.signals = signals
        await self.publisher.publish_now()

    async def fall_silent(self) -> None:
        """Publish a last record, which expires at once."""
        self.registration = msgspec.structs.replace(self.registration, ttl_ms=50)
        self.publisher.announce()
        await self.publisher.publish_now()

    async def leave(self) -> None:
        """Say that the instance is gone."""
        await self.publisher.withdraw(msgspec.structs.replace(self.registration, state="gone"))


#: The workers here tell nothing but what is in flight: that is what is chosen by.
SETTINGS: dict[str, Any] = {
    "port": 0,
    "admin_port": 0,
    "read_budget_ms": 2000,
    "drain_s": 0.05,
    "strategy": "least_load",
}


class Fleet:
    """A replica and its workers."""

    def __init__(self, bus: FakeBus, serve: Callable[..., Awaitable[Server]]) -> None:
        self.bus = bus
        self.callers = Callers()
        self.workers: dict[str, FakeWorker] = {}
        self.replica: Replica | None = None
        self.lines: list[AccessLine] = []
        self._serve = serve

    async def worker(
        self, instance: str, respond: Respond, *, models: tuple[str, ...] = ("tiny",), told: Any = (), **signals: float
    ) -> FakeWorker:
        """Announce an instance; `told` are further fields of its registration."""
        server = await self._serve(lambda peer: repeat(peer, respond))
        told = {"models": models, **dict(told)}
        self.workers[instance] = one = FakeWorker(self.bus, instance, server, signals or {"inflight": 0}, told)
        await one.publisher.publish_now()
        return one

    async def start(self, **settings: Any) -> "Fleet":
        """Start the replica; it knows the workers announced so far at once."""
        config = ProxyConfig(**{**SETTINGS, **settings})
        self.replica = Replica(config)
        await self.replica.start()
        return self

    @property
    def url(self) -> str:
        """Where clients dial."""
        assert self.replica is not None
        return f"http://127.0.0.1:{self.replica.port}"

    async def ask(self, body: bytes = BODY, *, path: str = CHAT, method: str = "POST", **headers: str) -> Caller:
        """Send a request as a client would."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.callers.ask(self.url, path, body, method=method, headers=named)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON of a page."""
        status, body = await (await self.ask(b"", path=path, method="GET")).answer()
        return status, msgspec.json.decode(body)

    async def admin(self, path: str) -> Any:
        """Decoded JSON of an admin page."""
        assert self.replica is not None
        caller = await self.callers.ask(f"http://127.0.0.1:{self.replica.admin_port}", path, method="GET")
        status, body = await caller.answer()
        assert status == 200
        return msgspec.json.decode(body)

    async def comes_to_rest(self) -> None:
        """Wait until the replica has nothing in flight, anywhere that it counts."""
        replica = self.replica
        assert replica is not None
        await until(lambda: not replica.selection.inflight and not replica.inflight)

    async def close(self) -> None:
        """Let all clients leave, see the replica at rest, and stop it."""
        self.callers.close()
        if self.replica is not None:
            await self.comes_to_rest()
            await self.replica.stop()


@pytest.fixture
async def fleet(serve, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """Give a fleet to fill; at the end its replica has come to rest."""
    bus = FakeBus()
    monkeypatch.setattr("proxy.app.connect", lambda *_, **__: bus.connect())
    one = Fleet(bus, serve)
    monkeypatch.setattr(AccessLog, "write", lambda _, line: one.lines.append(line))
    yield one
    await one.close()
    await bus.close()
    await asyncio.sleep(0)
