"""Listening sockets of a process: the lean server of the relays, and small admin applications beside it."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from aiohttp import web

from bus.errors import ForebayError
from bus.hop.intake import HEAD_S, Intake, IntakeServer, check_head
from bus.hop.reply import finish

#: An idle connection is kept this long: longer than the other side keeps it, so that none is closed under a request.
KEEPALIVE_S: Final = 75.0

#: A request that still runs when a server is stopped has so long to end: whoever stops it has given it its time before.
SHUTDOWN_S: Final = 0.5

#: Connections that a listener leaves have so long to bring the next request of a busy client, whose answer tells it to
#: connect elsewhere. If they were closed at once, a request could cross with the close and be lost.
LINGER_S: Final = 2.0

#: Who was connected in the moment in which a listener leaves has so long for a TLS handshake.
HANDSHAKE_S: Final = 1.0

#: Between two looks at what slow readers have yet to take.
LOOK_S: Final = 0.02

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


class UnderWay:
    """Counts what is under way; `with` it a request is."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self.count += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none(self) -> None:
        """Wait until nothing is."""
        await self._none.wait()


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
        under_way: "UnderWay | None" = None,
    ) -> None:
        self.host = host
        self.port = port
        self._runner = runner
        self._reuse_port = reuse_port
        self._tls = tls
        self._leaving = leaving or asyncio.Event()
        self._under_way = under_way or UnderWay()
        self._server: asyncio.Server | None = None

    @property
    def under_way(self) -> int:
        """Requests that are not yet answered."""
        return self._under_way.count

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
        keepalive_s: float = KEEPALIVE_S,
        on_unusable: Callable[[int], None] | None = None,
    ) -> "Listener":
        """Give every request to `handler`, without routing; a client that leaves cancels it.

        Bodies above `body_limit` bytes raise BodyTooLarge when they are read. What is no request at all is answered
        here, and `on_unusable` told of it.
        """
        loop, leaving, under_way = asyncio.get_running_loop(), asyncio.Event(), UnderWay()

        def make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:  # noqa: ANN401
            parts = (message, payload, protocol, writer, task, loop)
            return _Request(*parts, leaving=leaving, client_max_size=body_limit)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            with under_way:
                check_head(request)
                response = await handler(request)
                await finish(request, response)
                return response

        server = IntakeServer(
            answer,
            intake={"head_timeout_s": head_timeout_s, "on_unusable": on_unusable},
            request_factory=make_request,
            handler_cancellation=True,
            keepalive_timeout=keepalive_s,
            access_log=None,
        )
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        return cls(runner, host, port, reuse_port=reuse_port, tls=tls, leaving=leaving, under_way=under_way)

    @classmethod
    def of_app(cls, app: web.Application, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> "Listener":
        """Serve an application with routes."""
        settings: dict[str, Any] = {"access_log": None, "keepalive_timeout": KEEPALIVE_S}
        return cls(web.AppRunner(app, shutdown_timeout=SHUTDOWN_S, **settings), host, port, tls=tls)

    async def start(self) -> None:
        """Bind and listen. Raises PortBusy."""
        await self._runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._made,
                self.host,
                self.port,
                ssl=self._tls,
                reuse_port=self._reuse_port or None,
                backlog=1024,
            )
        except (OSError, UnicodeError) as fault:
            await self._runner.cleanup()
            raise PortBusy(f"cannot listen on {self.host}:{self.port}: {_why(fault)}") from fault
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def is_listening(self) -> bool:
        """Whether it takes new connections."""
        return self._server is not None

    async def leave(self, *, linger_s: float = LINGER_S) -> None:
        """Take no new connection, and end those that are open: each with its next answer, an idle one after a while."""
        self._leaving.set()
        await self._stop_listening()
        if self._connections():
            await asyncio.sleep(linger_s)
            for connection in self._connections():
                connection.let_go()

    async def _stop_listening(self) -> None:
        """Listen no more; whom the kernel has connected and nobody accepted is accepted: a request may have come."""
        if self._server is None:
            return
        server, self._server = self._server, None
        kept = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
        server.close()
        await asyncio.sleep(0)  # for the loop to let go of them
        last = [connection for each in kept for connection in _accepted(each)]
        connect = asyncio.get_running_loop().connect_accepted_socket
        taken = [asyncio.ensure_future(connect(self._made, each, ssl=self._tls)) for each in last]
        if taken:
            await asyncio.wait(taken, timeout=HANDSHAKE_S)
        for each in taken:
            each.cancel()

    def _made(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None  # noqa: S101 - it is set up before anything listens
        return server()

    def _connections(self) -> list[Intake]:
        server = self._runner.server
        return [each for each in server.connections if isinstance(each, Intake)] if server is not None else []

    async def finished(self) -> None:
        """Wait until every request under way has been answered, to the last byte that a slow reader takes."""
        await self._under_way.none()
        while any(map(_has_unsent, self._connections())):
            await asyncio.sleep(LOOK_S)
            await self._under_way.none()

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._runner.cleanup()


def _accepted(listening: socket.socket) -> Iterator[socket.socket]:
    """Connections that wait to be accepted; the socket is closed after the last."""
    with listening, contextlib.suppress(BlockingIOError):
        listening.setblocking(False)
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            yield connection


def _has_unsent(connection: Intake) -> bool:
    return connection.transport is not None and connection.transport.get_write_buffer_size() > 0


def _why(fault: OSError | UnicodeError) -> str:
    if isinstance(fault, UnicodeError):
        return "not a host name"
    return "already in use" if fault.errno == errno.EADDRINUSE else fault.strerror or str(fault)
