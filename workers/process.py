"""The worker process: listeners, instances and an orderly end."""

import asyncio
import logging
import time
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bus.client import connect
from bus.fitness import demand_fitness
from bus.hop.admin import Page, behind_key
from bus.hop.process import run_until_signal
from bus.hop.secrets import read_secret
from bus.hop.server import Listener
from bus.hop.tls import certificate, client_tls, is_loopback
from bus.hop.tracing import tracer_of
from bus.url import read_url
from workers.config import WorkerConfig
from workers.door import Door
from workers.engine_watch import engine_headers
from workers.instance import Instance
from workers.metrics import WorkerMetrics
from workers.relay import BODY_LIMIT_BYTES, Relay

log = logging.getLogger("forebay.worker")


class Worker:
    """All instances of one process, each behind a listener of its own."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._metrics = WorkerMetrics()
        self._bus = connect(config.redis, timeout_s=max(config.ttl_ms / 3000, 0.1))
        self._certificate = certificate(config.tls_cert, config.tls_key)
        self._tls = self._certificate.context if self._certificate else None
        self._secret = read_secret(config.secret_file)
        self._admin_key = read_secret(config.admin_key_file)
        self._tracer = tracer_of(config.otlp_endpoint, service="forebay-worker", name=config.instances[0].id)
        headers = engine_headers(config.engine_key_file)
        engine_tls = client_tls(config.engine_ca)
        self.instances = [
            Instance(
                config,
                instance,
                bus=self._bus,
                engine_headers=headers,
                engine_tls=engine_tls,
                metrics=self._metrics,
                tracer=self._tracer,
                clock=time.monotonic,
            )
            for instance in config.instances
        ]
        self._listeners: list[Listener] = []
        self._admin: Listener | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        """One for each instance, and what serves all of them; none ends by itself."""

    @property
    def admin_port(self) -> int:
        """Port of /metrics and /debug."""
        return self._admin.port if self._admin else 0

    async def start(self) -> None:
        """Listen, then announce. Raises PortBusy, and BusUnfit for a server that can never be the bus."""
        config = self._config
        await demand_fitness(self._bus, config.pool)
        if self._certificate is not None:
            self.tasks.append(asyncio.create_task(self._certificate.keep(), name="certificate"))
        admin_tls = None if is_loopback(config.admin_host) else self._tls
        self._admin = Listener.of_app(self._admin_app(), config.admin_host, config.admin_port, tls=admin_tls)
        await self._admin.start()
        log.info("admin on port %d", self.admin_port)
        for index, instance in enumerate(self.instances):
            port = config.port + index if config.port else 0
            door = Door(Relay(instance).handle, self._secret, instance.id, self._metrics)
            listener = Listener.of_handler(door.handle, config.host, port, body_limit=BODY_LIMIT_BYTES, tls=self._tls)
            await listener.start()
            self._listeners.append(listener)
            scheme = "https" if self._tls else "http"
            instance.worker_url = f"{scheme}://{_in_url(config.advertise_host or config.host)}:{listener.port}"
            self.tasks.append(asyncio.create_task(instance.run(), name=f"instance {instance.id}"))
            log.info("instance %s: listening on %s", instance.id, instance.worker_url)
            message = "instance %s: %d slots, so many of its requests run at once on the engine (--slots)"
            log.info(message, instance.id, config.slots)
            if is_out_of_reach(config.advertise_host or config.host, config.redis):
                log.warning(
                    "instance %s: proxies of other machines cannot dial %s; name what they can with --advertise-host",
                    instance.id,
                    instance.worker_url,
                )

    async def stop(self) -> None:
        """Say that all instances drain, let running requests finish for at most `drain_s`, then withdraw and close."""
        for instance in self.instances:
            instance.drain()
            await instance.publisher.publish_now()
        try:
            async with asyncio.timeout(self._config.drain_s):
                for instance in self.instances:
                    await instance.drained()
                for listener in self._listeners:
                    await listener.finished()
        except TimeoutError:
            left = sum(len(instance.timeline) for instance in self.instances)
            log.warning("%d requests did not finish within %g s", left, self._config.drain_s)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for instance in self.instances:
            await instance.withdraw()
        for listener in (*self._listeners, *([self._admin] if self._admin else [])):
            await listener.stop()
        await self._bus.aclose()
        if self._tracer is not None:
            await self._tracer.close()

    def _admin_app(self) -> web.Application:
        app = web.Application()
        pages: dict[str, Page] = {
            "/health": self._health,
            "/metrics": self._metrics_page,
            "/debug/predictions": self._predictions,
        }
        app.add_routes([web.get(path, page) for path, page in behind_key(pages, self._admin_key).items()])
        return app

    async def _health(self, _: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"status": "ok", "instances": {i.id: i.state for i in self.instances}})

    async def _metrics_page(self, _: web.BaseRequest) -> web.StreamResponse:
        page = generate_latest(self._metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _predictions(self, _: web.BaseRequest) -> web.StreamResponse:
        """Predicted and real times to first token of the last requests, seconds."""
        page: dict[str, Any] = {instance.id: list(instance.predictions) for instance in self.instances}
        return web.Response(body=msgspec.json.encode(page), content_type="application/json")


def is_out_of_reach(host: str, redis: str) -> bool:
    """Whether proxies would not find this worker: an address that is none, or that of their own machine.

    The latter is as it should be where the bus is on this machine too.

    >>> is_out_of_reach("127.0.0.1", "redis://10.0.0.2:6379/0"), is_out_of_reach("10.0.0.5", "redis://10.0.0.2:6379/0")
    (True, False)
    >>> is_out_of_reach("127.0.0.1", "redis://localhost:6379/0"), is_out_of_reach("127.0.0.1", "unix:///run/redis.sock")
    (False, False)
    >>> is_out_of_reach("0.0.0.0", "redis://localhost:6379/0")
    True
    """
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return True
    servers = read_url(redis).servers
    return is_loopback(host) and not all(server.is_socket or is_loopback(server.host) for server in servers)


def _in_url(host: str) -> str:
    """A host as it stands in a URL.

    >>> _in_url("fd00::1"), _in_url("worker-1")
    ('[fd00::1]', 'worker-1')
    """
    return f"[{host}]" if ":" in host else host


async def serve(config: WorkerConfig, stop: asyncio.Event) -> None:
    """Run a worker until `stop` is set, or until a part of it fails: a worker that cannot publish must not go on."""
    worker = Worker(config)
    await worker.start()
    told = asyncio.create_task(stop.wait(), name="wait to be told to stop")
    try:
        ended, _ = await asyncio.wait({told, *worker.tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            await task  # raises what ended it
    finally:
        told.cancel()
        await worker.stop()


def run(config: WorkerConfig) -> None:
    """Run a worker until SIGTERM or SIGINT; the `forebay worker` command."""
    run_until_signal(lambda stop: serve(config, stop), log_level=config.log_level)
