"""Connections to one origin, kept alive and reused; a client for each worker or engine: none can starve another."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from bus.hop.answer import Answer
from bus.hop.connection import Connection
from bus.hop.errors import AnswerBroke, CannotConnect
from bus.hop.headers import RawHeaders

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

#: A connection that the other side had closed ends within a round trip of the request that is sent on it.
STALE_S: Final = 0.5

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to the addresses that may be dialled. Raises OSError, CannotConnect."""


class HopClient:
    """Sends requests to one origin.

    `idle_s`: an idle connection older than this is not reused; it must be shorter than the server's keep-alive time
    (uvicorn and llama.cpp: 5 s). `tls` says whom to believe of an https origin (by default the CAs of this machine),
    `resolve` which addresses to dial, `standing` are headers of every request.
    """

    def __init__(
        self,
        origin: str,
        *,
        connect_timeout_s: float = 2.0,
        idle_s: float = 4.0,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
        standing: RawHeaders | None = None,
    ) -> None:
        parts = urlsplit(origin)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"origin {origin!r}: must be http://host[:port] or https://host[:port]")
        self.origin = origin
        self.prefix = parts.path.rstrip("/")
        """Path of the origin, put before every target."""
        self._host = parts.hostname
        self._port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._resolve = resolve
        self._standing = b"".join(b"%b: %b\r\n" % pair for pair in standing or ())
        self._host_header = parts.netloc.rpartition("@")[2].encode()
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: list[Connection] = []
        self._is_closed = False

    async def exchange(
        self,
        method: str,
        target: str,
        headers: RawHeaders,
        body: bytes,
        *,
        head_timeout_s: float,
        on_sent: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Send a request and wait for the head of its answer; the request is aborted if this fails or is cancelled.

        `on_sent` is called with the answer to come when the request has been written: whoever aborts it with a fault
        ends the waiting with that fault. Raises CannotConnect, AnswerBroke, AnswerTooSlow. A
        connection that was reused and ends at once, before a byte of the answer, is replaced: the other side had closed
        it while it was idle; if none can be opened it has broken. One that ends later has broken on the request.
        """
        loop = asyncio.get_running_loop()
        head = self._request_head(method, target, headers, len(body))
        connection = self._take_idle()
        is_reused, broken = connection is not None, None
        while True:
            if connection is None:
                try:
                    connection = await self._connect()
                except CannotConnect:
                    if broken is not None:
                        raise broken from None  # it was not closed while idle: whoever was asked has gone on it
                    raise
            sent_s = loop.time()
            answer = connection.send(head, body, is_head_request=method == "HEAD")
            if on_sent is not None:
                on_sent(answer)
            try:
                await answer.head(head_timeout_s)
            except AnswerBroke as fault:
                if is_reused and not answer.has_bytes and loop.time() - sent_s < STALE_S:
                    # a fresh one: the other idle ones may be as dead
                    connection, is_reused, broken = None, False, fault
                    continue
                raise
            except BaseException:
                answer.abort()
                raise
            return answer

    def drop_stale(self) -> None:
        """Close what has been idle too long to be used again; after a burst nobody else would."""
        oldest_s = asyncio.get_running_loop().time() - self._idle_s
        stale = [each for each in self._idle if each.idle_since_s < oldest_s]
        self._idle = [each for each in self._idle if each.idle_since_s >= oldest_s]
        for connection in stale:
            connection.close()

    def close(self) -> None:
        """Close what is idle; connections in use close when their answer ends."""
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _request_head(self, method: str, target: str, headers: RawHeaders, length: int) -> bytes:
        lines = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), (self.prefix + target).encode(), self._host_header)
        ]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        lines.append(self._standing)
        if length or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % length)
        lines.append(b"\r\n")
        return b"".join(lines)

    def _take_idle(self) -> Connection | None:
        """Newest idle connection that is still open and young enough; the others are closed."""
        oldest_s = asyncio.get_running_loop().time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s >= oldest_s:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        if self._is_closed:
            connection.close()
        else:
            self._idle.append(connection)

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._dial()
        except (OSError, TimeoutError) as fault:
            raise CannotConnect(f"no connection: {_why(fault)}") from fault

    async def _dial(self) -> Connection:
        """Connect to the first address that takes it; what was resolved is dialled, not the name once more."""
        hosts = await self._resolve(self._host, self._port) if self._resolve else (self._host,)
        failed: OSError = OSError("no address")
        for host in hosts:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._give_back),
                    host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as fault:
                failed = fault
            else:
                return connection
        raise failed


def _why(fault: Exception) -> str:
    """What kept a connection from being made; clients may read it, so it names no address.

    >>> _why(ConnectionRefusedError(111, "Connect call failed ('10.0.0.5', 8000)")), _why(TimeoutError())
    ('Connection refused', 'it took too long')
    """
    if isinstance(fault, TimeoutError):
        return "it took too long"
    if isinstance(fault, ssl.SSLError):
        return "TLS: " + (fault.reason or type(fault).__name__).replace("_", " ").lower()
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)
    return "the name has no address" if isinstance(fault, socket.gaierror) else "no address takes it"
