"""Readers, and a fleet for them to read."""

from bus.reader import Reader
from tests.bus.worker import POOL, Worker


def reader(bus, *, timeout_s: float = 5.0, budget_s: float = 5.0, **more) -> Reader:
    """A reader that is in no hurry, so that a busy machine fails no test."""
    return Reader(bus.connect(timeout_s), POOL, budget_s=budget_s, **more)


async def fleet(bus, count: int, *, ttl_ms: int = 60_000) -> list[Worker]:
    """Workers that have published once, the i-th with i requests in flight; no busy machine outlasts their TTL."""
    workers = [Worker(bus.client, f"i{number}", ttl_ms=ttl_ms) for number in range(count)]
    for number, worker in enumerate(workers):
        worker.signals = {"inflight": number, "predicted_wait_ms": 1000}
        await worker.publish()
    return workers


async def inflight(one: Reader, now_s: float | None = None) -> dict[str, float | None]:
    """What a fresh view tells of every live instance."""
    view = await one.view()
    return {p.instance: p.signal("inflight") for p in view.live(view.read_at_s if now_s is None else now_s)}
