"""The replica process: what is built of what, which listener serves which page, and an orderly end."""

import asyncio
import contextlib
import logging
import socket
import time

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bus.client import connect
from bus.hop.process import run_until_signal
from bus.hop.server import Listener
from bus.reader import Reader
from bus.reservations import Reservations
from proxy import debug
from proxy.access_log import AccessLog
from proxy.config import ProxyConfig
from proxy.metrics import ProxyMetrics
from proxy.relay import Relay
from proxy.rotation import Rotation
from proxy.selection import Selection
from proxy.strategies import STRATEGIES
from proxy.surface import LocalPage, Surface
from proxy.tokenizer import Tokenizers

log = logging.getLogger("forebay.proxy")

#: How often a replica without traffic looks at the bus: for /ready, for the debug pages, to forget what is gone.
HOUSEKEEPING_S = 0.5


class Replica:
    """One proxy process."""

    def __init__(self, config: ProxyConfig) -> None:
        self.name = config.name or default_name(config)
        self._config = config
        budget_s = config.read_budget_ms / 1000
        self._bus = connect(config.redis, timeout_s=max(4 * budget_s, 0.1))
        self._readers = [Reader(self._bus, pool, budget_s=budget_s) for pool in config.pool]
        self._lease_bus = connect(config.redis, timeout_s=budget_s)
        self._reservations = [Reservations(self._lease_bus, pool) for pool in config.pool]
        self.selection = Selection(
            self._readers,
            self._reservations,
            STRATEGIES[config.strategy](config),
            rotation=Rotation.of_replica(self.name),
        )
        self._metrics = ProxyMetrics(self.selection)
        self._relay = Relay(config, self.selection, self._metrics)
        self._inflight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._api: Listener | None = None
        self._admin: Listener | None = None
        self._housekeeping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port of the API."""
        return self._api.port if self._api else 0

    @property
    def admin_port(self) -> int:
        """Port of the admin pages."""
        return self._admin.port if self._admin else 0

    async def start(self) -> None:
        """Read the bus once, then listen. Raises PortBusy."""
        config = self._config
        health: dict[str, LocalPage] = {"/health": self._health, "/ready": self._ready}
        admin: dict[str, LocalPage] = {
            **health,
            "/metrics": self._metrics_page,
            "/debug/instance_loads": self._instance_loads,
            "/debug/selections": self._selections,
        }
        for reader in self._readers:
            await reader.view()
        surface = Surface(
            self.selection,
            self._relay,
            self._metrics,
            AccessLog(config.access_log),
            Tokenizers(config.tokenizer),
            admin if config.debug_on_main_port else health,
        )
        app = web.Application()
        app.add_routes([web.get(path, page) for path, page in admin.items()])
        self._admin = Listener.of_app(app, config.host, config.admin_port)
        await self._admin.start()

        async def counted(request: web.BaseRequest) -> web.StreamResponse:
            self._inflight += 1
            self._idle.clear()
            try:
                return await surface.handle(request)
            finally:
                self._inflight -= 1
                if not self._inflight:
                    self._idle.set()

        self._api = Listener.of_handler(
            counted,
            config.host,
            config.port,
            body_limit=config.body_limit_mb * 1024 * 1024,
            reuse_port=config.reuse_port,
        )
        await self._api.start()
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        log.info("replica %s: API on port %d, admin on port %d", self.name, self.port, self.admin_port)

    async def stop(self) -> None:
        """Stop accepting, let running requests finish for at most `drain_s`, close."""
        self._is_draining = True
        if self._api is not None:
            await self._api.stop_accepting()
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d requests did not finish within %g s", self._inflight, self._config.drain_s)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._housekeeping
        for listener in (self._api, self._admin):
            if listener is not None:
                await listener.stop()
        self._relay.close()
        for reservations in self._reservations:
            await reservations.close()
        for reader in self._readers:
            await reader.close()
        await self._lease_bus.aclose()
        await self._bus.aclose()

    async def _keep_house(self) -> None:
        while True:
            urls = set()
            for reader in self._readers:
                view = await reader.view()
                urls |= {registration.worker_url for registration in view.registered()}
            self._relay.forget_all_but(urls)
            self.selection.forget_gone()
            await asyncio.sleep(HOUSEKEEPING_S)

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
        limit = request.query.get("limit", "50")
        request_id = request.query.get("request_id")
        page = debug.selections(self.selection, limit=int(limit) if limit.isdigit() else 50, request_id=request_id)
        return _json(page)


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
