"""A simulated engine as something that starts and stops: the listener, its faults, several engines in one process."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from deploy.engine import breakage
from deploy.engine.config import EngineConfig
from deploy.engine.faults import FaultOrder, FaultSwitch, Stage, parse_fault
from deploy.engine.metrics import Counters
from deploy.engine.stepping import StepLoop
from deploy.engine.surface import Surface

KEEPALIVE_S: Final = 5.0  # vLLM's default (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
_SHUTDOWN_S: Final = 0.1  # requests under way are not waited for: an engine that stops is an engine that is gone
_BACKLOG: Final = 1024


class SimulatedEngine:
    """One engine on one port.

    `start` binds, `stop` resets what is under way. `steps` and `counters` show what the engine is doing; both are for
    tests and benchmarks that run in the same process.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.steps: StepLoop
        self._switch = FaultSwitch()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._port = config.port
        self._fault_end: asyncio.TimerHandle | None = None
        self._reopening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.url} fault={self._switch.order}>"

    @property
    def url(self) -> str:
        """Base URL without a slash at its end; the port is known after `start`."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self._port}"

    @property
    def fault(self) -> FaultOrder | None:
        """The fault in force."""
        return self._switch.order

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the port is taken, UnicodeError if the host is no name."""
        self.steps = StepLoop(self.config.batching, self.counters, asyncio.get_running_loop())
        surface = Surface(self.config, self.counters, self.steps, self._switch, self.set_fault)
        self._runner = web.AppRunner(
            surface.application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await self._runner.setup()
        try:
            await self._listen()
        except (OSError, UnicodeError):
            await self.stop()
            raise
        if self.config.fault:
            await self.set_fault(parse_fault(self.config.fault))

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._fault_end is not None:
            self._fault_end.cancel()
        if self._reopening is not None:
            await self._reopening
        if self._runner is not None:
            self.steps.stop()
            self._reset_connections(None)
            await self._runner.cleanup()
            self._runner = self._site = None

    async def set_fault(self, order: FaultOrder | None, request: web.Request | None = None) -> None:
        """Switch a fault on (None: off); `request` is the one that asked for it, whose connection is spared."""
        if self._fault_end is not None:
            self._fault_end.cancel()
            self._fault_end = None
        if self._site is None:
            self._reset_connections(request)  # what had fallen silent ends with the process that comes back
        self._switch.set(order)
        if order is not None and order.fault.stage is Stage.LISTENER:
            await self._close_listener(request, is_silent=order.kind == "stop_undrained")
        elif self._site is None:
            await self._listen()
        if order is not None and order.seconds is not None:
            self._fault_end = asyncio.get_running_loop().call_later(order.seconds, self._end_fault)

    def _end_fault(self) -> None:
        self._fault_end = None
        self._reopening = asyncio.get_running_loop().create_task(self.set_fault(None))

    async def _listen(self) -> None:
        assert self._runner is not None  # noqa: S101 - only called between start and stop
        site = web.TCPSite(self._runner, self.config.host, self._port, backlog=_BACKLOG, reuse_address=True)
        await site.start()
        self._site = site
        self._port = self._runner.addresses[0][1]

    async def _close_listener(self, request: web.Request | None, *, is_silent: bool) -> None:
        if self._site is not None:
            site, self._site = self._site, None
            await site.stop()
        if is_silent:
            self._fall_silent()
        else:
            self._reset_connections(request)

    def _fall_silent(self) -> None:
        """Run nothing any more and say nothing of it; only connections without a request end."""
        self.steps.stop()
        assert self._runner is not None  # noqa: S101 - only called between start and stop
        for connection in self._runner.server.connections if self._runner.server else ():
            connection.close()

    def _reset_connections(self, spared: web.Request | None) -> None:
        server = self._runner.server if self._runner is not None else None
        if server is None:
            return
        for connection in server.connections:
            transport = connection.transport
            if transport is not None and (spared is None or transport is not spared.transport):
                breakage.reset(transport)


async def serve(
    configs: Sequence[EngineConfig],
    *,
    stop: asyncio.Event,
    ready: Callable[[list[str]], None] | None = None,
) -> None:
    """Run engines until `stop` is set; `ready` hears their URLs, in order, when all of them listen.

    Raises OSError if a port is taken; then none is left running.
    """
    engines = [SimulatedEngine(config) for config in configs]
    started: list[SimulatedEngine] = []
    try:
        for engine in engines:
            await engine.start()
            started.append(engine)
        if ready is not None:
            ready([engine.url for engine in engines])
        await stop.wait()
    finally:
        for engine in started:
            await engine.stop()
