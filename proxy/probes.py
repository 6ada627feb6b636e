"""Asks workers whether they live: those whose record stays away, and those that failed and want to come back.

A record that has expired is no proof: a worker that lost only the bus is well, and moving its requests would throw
away work that it does. One that was stopped or cut off answers nothing, and whoever waits there would wait for ever.
So it is asked, and only silence ejects it and moves what waits there without a first event. Nobody is asked because of
a record while the bus is not fresh, or where all records are gone: then it is not the workers that are at fault.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from bus.hop.errors import HopFailed
from bus.reader import Reader
from bus.view import PoolView
from proxy.ejection import Ejections
from proxy.metrics import ProxyMetrics
from proxy.selection import Selection
from proxy.uplinks import Uplinks
from proxy.waiting import Suspected, Waiting

log = logging.getLogger("forebay.proxy")

#: Time between two looks at who is to be asked.
LOOK_EVERY_S: Final = 0.1

#: A worker that answers though its record is gone is asked again after this long.
ASK_AGAIN_S: Final = 0.5

#: What this process may have been held up itself: an answer that came meanwhile is still seen.
_GRACE_S: Final = 0.02

_PATH: Final = "/health"
_PAGE_BYTES: Final = 64 * 1024


class Probe(NamedTuple):
    """A worker to be asked."""

    instance: str
    worker_url: str
    is_silent: bool
    """Its record is gone: if it does not answer either, what waits there moves."""


def due_probes(views: Iterable[PoolView], fresh: Iterable[PoolView], ejections: Ejections, now: float) -> list[Probe]:
    """Who is to be asked now: the silent of the `fresh` views, and of all `views` the ejected whose pause is over."""
    silent = {p.instance: Probe(p.instance, p.registration.worker_url, True) for view in fresh for p in view.silent()}
    ejected = set(ejections.due(now))
    returning = {
        name: Probe(name, reading.entry.registration.worker_url, False)
        for view in views
        for name in ejected & view.readings.keys()
        if (reading := view.readings[name]).entry is not None
    }
    due = [probe for name, probe in silent.items() if name in ejected or not ejections.needs_health(name)]
    return due + [probe for name, probe in returning.items() if name not in silent]


class Prober:
    """Asks who is due, each worker at most once at a time; the tasks are its own."""

    def __init__(
        self,
        selection: Selection,
        uplinks: Uplinks,
        waiting: Waiting,
        metrics: ProxyMetrics,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selection = selection
        self._uplinks = uplinks
        self._waiting = waiting
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._clock = clock
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._not_before_s: dict[str, float] = {}

    async def run(self) -> None:
        """Look again and again until cancelled; then nobody is being asked any more."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            asking = list(self._asked.values())
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def look(self) -> None:
        """Ask who is due and is not being asked."""
        now = self._clock()
        self._not_before_s = {name: at_s for name, at_s in self._not_before_s.items() if at_s > now}
        readers = self._selection.readers.values()
        views = [reader.last_view for reader in readers]
        for probe in due_probes(views, _fresh(readers, now), self._selection.ejections, now):
            name = probe.instance
            if name not in self._asked and name not in self._not_before_s:
                self._asked[name] = asyncio.create_task(self._ask(probe), name=f"probe {name}")

    async def _ask(self, probe: Probe) -> None:
        try:
            is_alive = await self._answers(probe.worker_url)
            if self._is_worker_of(probe):  # else another has taken the instance over meanwhile
                self._conclude(probe, is_alive)
        finally:
            del self._asked[probe.instance]

    def _is_worker_of(self, probe: Probe) -> bool:
        readings = [reader.last_view.readings.get(probe.instance) for reader in self._selection.readers.values()]
        urls = {reading.entry.registration.worker_url for reading in readings if reading and reading.entry}
        return probe.worker_url in urls or not urls

    def _conclude(self, probe: Probe, is_alive: bool) -> None:
        """Let an instance back, or eject it and move what waits there."""
        now = self._clock()
        ejections, name = self._selection.ejections, probe.instance
        was_known_dead = ejections.needs_health(name)
        if is_alive:
            self._not_before_s[name] = now + ASK_AGAIN_S
        if is_alive or was_known_dead:
            ejections.probed(name, is_alive, now)
        else:
            ejections.failed(name, now, needs_health=True)
        if is_alive and was_known_dead:
            log.info("instance %s: its worker answers again", name)
        elif probe.is_silent and not is_alive:
            moved = self._waiting.move(name, Suspected(f"the worker of {name} does not answer"))
            self._metrics.moved.inc(moved)
            if moved or not was_known_dead:
                log.warning("instance %s: no record and no answer; %d waiting requests go elsewhere", name, moved)

    async def _answers(self, worker_url: str) -> bool:
        """Whether the worker answers in time; any answer will do, since it is the process that is asked for."""
        asking = asyncio.create_task(self._get(worker_url), name=f"ask {worker_url}")
        try:
            await asyncio.wait((asking,), timeout=self._timeout_s)
            if not asking.done():
                await asyncio.sleep(_GRACE_S)
            return asking.done() and asking.result()
        finally:
            asking.cancel()
            await asyncio.wait((asking,))

    async def _get(self, worker_url: str) -> bool:
        try:
            client = self._uplinks.client(worker_url)
            answer = await client.exchange("GET", _PATH, [], b"", head_timeout_s=2 * self._timeout_s)
            await answer.body(_PAGE_BYTES, silence_s=self._timeout_s)
        except HopFailed:
            return False
        return True


def _fresh(readers: Iterable[Reader], now: float) -> list[PoolView]:
    """Views of the pools whose bus answers."""
    return [reader.last_view for reader in readers if reader.state(now) == "fresh"]
