"""The replica process: what is built of what, which listener serves which page, and an orderly end."""

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bus.client import connect
from bus.fitness import demand_fitness
from bus.hop.admin import Page, behind_key
from bus.hop.process import run_until_signal
from bus.hop.secrets import read_secret
from bus.hop.server import LINGER_S, Listener
from bus.hop.tls import certificate, is_loopback
from bus.hop.tracing import tracer_of
from bus.link import Link
from bus.reader import Reader
from bus.reservations import Reservations
from proxy import debug
from proxy.access_log import AccessLog
from proxy.config import ProxyConfig
from proxy.dashboard.board import Dashboard
from proxy.dashboard.files import file_pages
from proxy.door import Door
from proxy.metrics import ProxyMetrics
from proxy.probes import Prober
from proxy.relay import Relay
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from proxy.surface import Surface
from proxy.tokenizer import Tokenizers
from proxy.uplinks import Uplinks

log = logging.getLogger("forebay.proxy")

#: How often a replica without traffic looks at the bus: for /ready, for the debug pages, to forget what is gone.
HOUSEKEEPING_S = 0.5

_LIMIT = re.compile("[0-9]{1,6}")

#: At its start a replica waits so long for its first reading of the bus, and looks so often.
FIRST_LOOK_S = 1.0
LOOK_AGAIN_S = 0.02


class Replica:
    """One proxy process."""

    def __init__(self, config: ProxyConfig) -> None:
        self.name = config.name or default_name(config)
        self._config = config
        budget_s = config.read_budget_ms / 1000
        self._links: list[Link] = []
        self._uplinks = Uplinks(config)
        self._readers = [
            Reader(self._link(max(4 * budget_s, 0.1)), pool, budget_s=budget_s, admits=self._uplinks.admits)
            for pool in config.pool
        ]
        self._reservations = [Reservations(self._link(budget_s), pool) for pool in config.pool]
        self.selection = Selection(
            self._readers,
            self._reservations,
            STRATEGIES[config.strategy](config),
            rotation=Rotation.of_replica(self.name),
        )
        self._door = Door(config.api_keys, self._link(budget_s))
        self._admin_key = read_secret(config.admin_key_file)
        self._certificate = certificate(config.tls_cert, config.tls_key)
        self._tls = self._certificate.context if self._certificate else None
        self._tracer = tracer_of(config.otlp_endpoint, service="forebay-proxy", name=self.name)
        self._metrics = ProxyMetrics(self.selection, self._uplinks, self._door, lambda: self.inflight)
        self._dashboard = Dashboard(
            self.selection,
            self._metrics,
            name=self.name,
            redis=config.redis,
            is_draining=lambda: self._is_draining,
        )
        self._relay = Relay(config, self.selection, self._metrics, self._uplinks)
        waiting, probe_s = self._relay.waiting, config.probe_timeout_ms / 1000
        self._prober = Prober(self.selection, self._uplinks, waiting, self._metrics, timeout_s=probe_s)
        self._is_draining = False
        self._api: Listener | None = None
        self._admin: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _link(self, timeout_s: float) -> Link:
        """A connection to the bus for one purpose and one pool: pools may be on different nodes of a cluster."""
        self._links.append(connect(self._config.redis, timeout_s=timeout_s))
        return self._links[-1]

    @property
    def port(self) -> int:
        """Port of the API."""
        return self._api.port if self._api else 0

    @property
    def admin_port(self) -> int:
        """Port of the admin pages."""
        return self._admin.port if self._admin else 0

    @property
    def inflight(self) -> int:
        """Requests of clients that are not yet answered."""
        return self._api.under_way if self._api else 0

    async def start(self) -> None:
        """Read the bus once, then listen. Raises PortBusy, and BusUnfit for a server that can never be the bus."""
        config = self._config
        health: dict[str, Page] = {"/health": self._health, "/ready": self._ready}
        pages: dict[str, Page] = {
            **health,
            "/metrics": self._metrics_page,
            "/debug/instance_loads": self._instance_loads,
            "/debug/selections": self._selections,
            **self._dashboard.pages(),
        }
        admin = {**file_pages(), **behind_key(pages, self._admin_key)}
        await demand_fitness(self._links[0], config.pool[0])
        await self._look_first()
        await asyncio.gather(*(reservations.prepare() for reservations in self._reservations))
        self.selection.look_around()
        surface = Surface(
            self.selection,
            self._relay,
            self._metrics,
            AccessLog(config.access_log, on_lost=self._metrics.lost_lines.inc),
            Tokenizers(config.tokenizer),
            self._door,
            config,
            admin if config.debug_on_main_port else health,
            self._tracer,
        )
        app = web.Application()
        app.add_routes([web.get(path, page) for path, page in admin.items()])
        self._admin = Listener.of_app(app, config.admin_host, config.admin_port, tls=self._tls_of(config.admin_host))
        await self._admin.start()

        self._api = Listener.of_handler(
            surface.handle,
            config.host,
            config.port,
            body_limit=config.body_limit_mb * 1024 * 1024,
            reuse_port=config.reuse_port,
            tls=self._tls,
            head_timeout_s=config.head_timeout_s,
            keepalive_s=config.keepalive_s,
            on_unusable=self._metrics.count,
        )
        await self._api.start()
        self._tasks = [
            asyncio.create_task(self._keep_house(), name="housekeeping"),
            asyncio.create_task(_every(HOUSEKEEPING_S, self._uplinks.look_up), name="addresses of workers"),
            asyncio.create_task(_every(HOUSEKEEPING_S, self._door.keep), name="keys and their leases"),
            asyncio.create_task(self._prober.run(), name="probes"),
        ]
        if self._certificate is not None:
            self._tasks.append(asyncio.create_task(self._certificate.keep(), name="certificate"))
        log.info("replica %s: API on port %d, admin on port %d", self.name, self.port, self.admin_port)

    async def stop(self) -> None:
        """Take no new connection, let running requests finish for at most `drain_s`, close.

        Connections that clients keep end with their next answer, so that no request crosses with their end.
        """
        self._is_draining = True
        if self._api is not None:
            await self._api.leave(linger_s=min(LINGER_S, self._config.drain_s))
            try:
                async with asyncio.timeout(self._config.drain_s):
                    await self._api.finished()
            except TimeoutError:
                log.warning("%d requests did not finish within %g s", self._api.under_way, self._config.drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in (self._api, self._admin):
            if listener is not None:
                await listener.stop()
        self._uplinks.close()
        await self._door.close()
        for reservations in self._reservations:
            await reservations.close()
        for reader in self._readers:
            await reader.close()
        for link in self._links:
            await link.aclose()
        if self._tracer is not None:
            await self._tracer.close()

    async def _keep_house(self) -> None:
        while True:
            self._uplinks.forget_all_but(await self._look_at_bus())
            self.selection.look_around()
            self._dashboard.note()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _look_first(self) -> None:
        """Read every pool before anybody asks: a replica that has seen nothing knows no model and no instance.

        A bus that is away must not keep it from listening, so this ends after FIRST_LOOK_S.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + FIRST_LOOK_S
        await self._look_at_bus()
        while not all(reader.reads for reader in self._readers) and loop.time() < end_s:
            await asyncio.sleep(LOOK_AGAIN_S)
            await self._look_at_bus()

    async def _look_at_bus(self) -> set[str]:
        """Refresh the views; the workers that they name."""
        views = [await reader.view() for reader in self._readers]
        return {registration.worker_url for view in views for registration in view.registered()}

    def _tls_of(self, host: str) -> ssl.SSLContext | None:
        """TLS of a listener beside the API's: what stays on this machine goes without."""
        return None if is_loopback(host) else self._tls

    # -- pages

    async def _health(self, _: web.BaseRequest) -> web.StreamResponse:
        return _json({"status": "ok"})

    async def _ready(self, _: web.BaseRequest) -> web.StreamResponse:
        """Ready after the first reading of the bus; how the replica sees now is said beside it."""
        now = time.monotonic()
        pools = {reader.pool: reader.state(now) for reader in self._readers}
        if self._is_draining:
            return _json({"status": "draining", "bus": pools}, status=503)
        if not any(reader.reads for reader in self._readers):
            return _json({"status": "has not read the bus yet", "bus": pools}, status=503)
        return _json({"status": "ready", "bus": pools})

    async def _metrics_page(self, _: web.BaseRequest) -> web.StreamResponse:
        page = generate_latest(self._metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _instance_loads(self, _: web.BaseRequest) -> web.StreamResponse:
        for reader in self._readers:
            await reader.view()
        return _json(debug.instance_loads(self.selection, self.name))

    async def _selections(self, request: web.BaseRequest) -> web.StreamResponse:
        limit = request.query.get("limit", "")
        most = int(limit) if _LIMIT.fullmatch(limit) else 50
        return _json(debug.selections(self.selection, limit=most, request_id=request.query.get("request_id")))


async def _every(seconds: float, do: Callable[[], Awaitable[None]]) -> None:
    """Do it again and again until cancelled: what may wait for others has a task of its own."""
    while True:
        await do()
        await asyncio.sleep(seconds)


def default_name(config: ProxyConfig) -> str:
    """Name of a replica that was given none: where it listens; on all addresses, the machine's name stands for them.

    Replicas in containers all listen on 0.0.0.0:8000, and their ties must differ.
    """
    host = socket.gethostname() if config.host in {"0.0.0.0", "::"} else config.host  # noqa: S104 - compared, not bound
    return f"{host}:{config.port}"


def _json(page: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(page), content_type="application/json")


async def serve(config: ProxyConfig, stop: asyncio.Event) -> None:
    """Run a replica until `stop` is set."""
    replica = Replica(config)
    await replica.start()
    try:
        await stop.wait()
    finally:
        await replica.stop()


def run(config: ProxyConfig) -> None:
    """Run a replica until SIGTERM or SIGINT; the `forebay proxy` command."""
    run_until_signal(lambda stop: serve(config, stop), log_level=config.log_level)
