"""A queue worker as the bus sees one: signals to publish, a registration, and the order to give way."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bus.keys import instances_key, pressure_key, reserved_key
from bus.publisher import Publisher
from bus.record import PressureRecord
from bus.registration import Registration
from bus.scripts import Commands
from bus.view import PoolView

POOL = "default"

#: Keys of instance a.
PRESSURE, RESERVED = pressure_key(POOL, "a"), reserved_key(POOL, "a")
INSTANCES = instances_key(POOL)


class Worker:
    """Publishes `signals` for one instance; counts how often it was told to give way."""

    def __init__(
        self, client: Commands, instance: str = "a", *, pool: str = POOL, ttl_ms: int = 1500, **more: Any
    ) -> None:
        self.signals: dict[str, Any] = {"inflight": 1}
        self.registration = registration(instance, ttl_ms=ttl_ms)
        self.gave_way = 0
        self.publisher = Publisher(
            client,
            pool=pool,
            instance=instance,
            make_record=lambda epoch, sequence: PressureRecord(epoch=epoch, sequence=sequence, **self.signals),
            registration=lambda: self.registration,
            on_superseded=self._give_way,
            **more,
        )

    def _give_way(self) -> None:
        self.gave_way += 1

    async def publish(self) -> None:
        """Publish once, announcing the instance first where that is due."""
        await self.publisher.publish_now()


def registration(instance: str = "a", **more: Any) -> Registration:
    """What a worker announces for an instance."""
    values = {"worker_url": f"http://worker-{instance}:1", "engine_url": f"http://engine-{instance}:1"}
    return Registration(**(values | {"models": (f"model-{instance}",)} | more))


def lately_served(view: PoolView) -> set[str]:
    """Of all models that these tests know, those that a view remembers."""
    known = {"m", "rare", "tiny", "model-a", "model-b", "model-m9", *(f"model-i{number}" for number in range(10))}
    return {model for model in known if view.has_lately_served(model)}


async def until(is_so: Callable[[], bool | Awaitable[bool]], *, within_s: float = 10.0) -> None:
    """Look until `is_so()`; fail if that takes too long."""
    deadline = time.monotonic() + within_s
    while True:
        found = is_so()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)
