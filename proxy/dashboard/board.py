"""What the dashboard asks a replica for beside the debug pages: its own state, and the last minutes.

Numbers and ids only. Owns the history; everything else is counted elsewhere and asked for here.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from bus.hop.admin import Page
from bus.reader import Reader
from bus.reservations import Reservations
from bus.url import read_url
from proxy.dashboard.history import History
from proxy.metrics import ProxyMetrics
from proxy.selection import Selection


class Dashboard:
    """One for each replica."""

    def __init__(
        self,
        selection: Selection,
        metrics: ProxyMetrics,
        *,
        name: str,
        redis: str,
        is_draining: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selection = selection
        self._metrics = metrics
        self._name = name
        self._servers = [str(server) for server in read_url(redis).servers]
        """Where the bus is, without the login."""
        self._is_draining = is_draining
        self._clock = clock
        self._began_s = clock()
        self._history = History()

    def pages(self) -> dict[str, Page]:
        """The data, for whoever may see the debug pages."""
        return {"/debug/replica": self._replica_page, "/debug/history": self._history_page}

    def note(self) -> None:
        """Keep what the last views say, for the history; called at least once a second."""
        now_s = self._clock()
        readers = self._selection.readers
        found = {pool: reader.last_view.live(now_s) for pool, reader in readers.items()}
        self._history.note(found, self._selection.selected, now_s=now_s)

    async def _history_page(self, _: web.BaseRequest) -> web.StreamResponse:
        return _json(self._history.page(now_s=self._clock()))

    async def _replica_page(self, _: web.BaseRequest) -> web.StreamResponse:
        return _json(self.replica())

    def replica(self) -> dict[str, Any]:
        """Page of /debug/replica: how this process fares, counts since its start."""
        selection, now_s = self._selection, self._clock()
        return {
            "replica": self._name,
            "now": time.time(),  # so that a page can place the times of choices on its own clock
            "strategy": selection.strategy.name,
            "up_s": round(now_s - self._began_s, 1),
            "is_draining": self._is_draining(),
            "inflight": sum(selection.inflight.values()),
            "answers": self._metrics.answers(),
            "tiers": dict(selection.tiers),
            "bus_servers": self._servers,
            "pools": {
                pool: _pool(reader, selection.reservations.get(pool), now_s)
                for pool, reader in selection.readers.items()
            },
        }


def _pool(reader: Reader, reservations: Reservations | None, now_s: float) -> dict[str, Any]:
    """How one pool is read and reserved in."""
    view = reader.last_view
    return {
        "bus": {"state": reader.state(now_s), "age_ms": round(view.age_s(now_s) * 1000, 1) if reader.reads else None},
        "reads": reader.reads,
        "read_failures": reader.read_failures,
        "not_believed": dict(reader.faults),
        "registered": len(view.registered_instances()),
        "reservations": reservations.outcomes() if reservations is not None else None,
    }


def _json(page: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(page), content_type="application/json")
