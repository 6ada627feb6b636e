"""Listening sockets of a process: the lean server of the relays, and small admin applications beside it."""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from bus.errors import ForebayError
from bus.hop.intake import HEAD_S, Intake, IntakeServer

#: An idle connection is kept this long: longer than the other side keeps it, so that none is closed under a request.
KEEPALIVE_S: Final = 75.0

#: A request that still runs when a server is stopped has so long to end: whoever stops it has given it its time before.
SHUTDOWN_S: Final = 0.5

#: Connections that a listener leaves have so long to bring the next request of a busy client, whose answer tells it to
#: connect elsewhere. If they were closed at once, a request could cross with the close and be lost.
LINGER_S: Final = 2.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class PortBusy(ForebayError):
    """An address that cannot be listened on."""


class _Request(web.BaseRequest):
    """A request whose answer ends its connection once the listener is leaving."""

    def __init__(self, *parts: Any, leaving: asyncio.Event, **settings: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(*parts, **settings)
        self._leaving = leaving

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        if self._leaving.is_set():
            response.headers["Connection"] = "close"
            response.force_close()


class Listener:
    """A server on one port; `port` is known after `start`."""

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
        leaving: asyncio.Event | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._runner = runner
        self._reuse_port = reuse_port
        self._tls = tls
        self._leaving = leaving or asyncio.Event()

    @classmethod
    def of_handler(
        cls,
        handler: Handler,
        host: str,
        port: int,
        *,
        body_limit: int,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
        head_timeout_s: float = HEAD_S,
        on_unusable: Callable[[int], None] | None = None,
    ) -> "Listener":
        """Give every request to `handler`, without routing; a client that leaves cancels it.

        Bodies above `body_limit` bytes raise BodyTooLarge when they are read. What is no request at all is answered
        here, and `on_unusable` told of it.
        """
        loop, leaving = asyncio.get_running_loop(), asyncio.Event()

        def make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:  # noqa: ANN401
            parts = (message, payload, protocol, writer, task, loop)
            return _Request(*parts, leaving=leaving, client_max_size=body_limit)

        server = IntakeServer(
            handler,
            intake={"head_timeout_s": head_timeout_s, "on_unusable": on_unusable},
            request_factory=make_request,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,
        )
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        return cls(runner, host, port, reuse_port=reuse_port, tls=tls, leaving=leaving)

    @classmethod
    def of_app(cls, app: web.Application, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> "Listener":
        """Serve an application with routes."""
        settings: dict[str, Any] = {"access_log": None, "keepalive_timeout": KEEPALIVE_S}
        return cls(web.AppRunner(app, shutdown_timeout=SHUTDOWN_S, **settings), host, port, tls=tls)

    async def start(self) -> None:
        """Bind and listen. Raises PortBusy."""
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            self.host,
            self.port,
            ssl_context=self._tls,
            reuse_port=self._reuse_port or None,
            backlog=1024,
        )
        try:
            await site.start()
        except (OSError, UnicodeError) as fault:
            await self._runner.cleanup()
            raise PortBusy(f"cannot listen on {self.host}:{self.port}: {_why(fault)}") from fault
        self.port = self._runner.addresses[0][1]

    async def leave(self, *, linger_s: float = LINGER_S) -> None:
        """Take no new connection, and end those that are open: each with its next answer, an idle one after a while."""
        self._leaving.set()
        for site in list(self._runner.sites):
            await site.stop()
        server = self._runner.server
        if server is not None and server.connections:
            await asyncio.sleep(linger_s)
            for connection in server.connections:
                if isinstance(connection, Intake):
                    connection.let_go()

    async def stop(self) -> None:
        """Close everything."""
        await self._runner.cleanup()


def _why(fault: OSError | UnicodeError) -> str:
    if isinstance(fault, UnicodeError):
        return "not a host name"
    return "already in use" if fault.errno == errno.EADDRINUSE else fault.strerror or str(fault)
