"""The loop that looks at a running cluster once a second. Owns the polling and the rate; starts nothing."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import aiohttp

from deploy.cluster.cluster import Cluster
from deploy.cluster.gauge import Gauge
from deploy.cluster.screen import Screen
from deploy.cluster.view import Snapshot

EVERY_S = 1.0
"""Time between two pictures."""

RATE_PICTURES = 10
"""Pictures over which requests/s are averaged."""


class Watch:
    """Looks at a cluster: its parts, its replicas, its traffic."""

    def __init__(self, cluster: Cluster, gauge: Gauge, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self.gauge = gauge
        self.clock = clock
        self.began_s = clock()
        self.seen: deque[tuple[float, int]] = deque(maxlen=RATE_PICTURES)

    async def until(self, stop: asyncio.Event, session: aiohttp.ClientSession, screen: Screen, *, run_s: float) -> None:
        """Show the cluster once a second until `stop` is set or `run_s` seconds are over (0: no end)."""
        end_s = self.began_s + run_s if run_s else float("inf")
        next_s = self.began_s
        while not stop.is_set() and self.clock() < end_s:
            next_s = min(max(next_s + EVERY_S, self.clock()), end_s)
            await wait_for_event(stop, next_s - self.clock())
            screen.show(await self.look(session))
            self.cluster.cut_logs()

    async def look(self, session: aiohttp.ClientSession) -> Snapshot:
        """Return the cluster as it is now."""
        await self.gauge.poll(session)
        now_s, requests = self.clock(), self.gauge.totals.requests
        self.seen.append((now_s, requests))
        then_s, before = self.seen[0]
        return Snapshot(
            elapsed_s=now_s - self.began_s,
            totals=self.gauge.totals,
            requests_per_s=(requests - before) / (now_s - then_s) if now_s > then_s else None,
            loads=self.gauge.fleet(),
            restarts=self.cluster.restarts,
        )


async def wait_for_event(event: asyncio.Event, limit_s: float) -> None:
    """Wait until an event is set, but not longer than a time."""
    try:
        async with asyncio.timeout(max(0.0, limit_s)):
            await event.wait()
    except TimeoutError:
        pass
