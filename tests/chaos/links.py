"""A TCP relay on loopback that can delay, throttle, reset or swallow what passes: the network that breaks.

Owns connections and bytes in flight. Knows nothing of what is said over it, nor of when it is told to misbehave.
"""

import asyncio
import socket
import struct
from collections import deque
from typing import Final, Literal, cast

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_EOF: Final = b""

Loss = Literal["none", "open", "all"]
"""Whose bytes vanish: nobody's, those of the connections that stood when it began, or those of new ones too."""


class Link:
    """Listens on `host:port` (0: the system chooses) and relays each connection to `target`.

    Faults are attributes that may change at any time: `delay_s` for each direction, `bytes_per_s` (0: no limit), and
    what `lose` and `reset` do.
    """

    def __init__(self, target: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self.host = host
        self.port = port
        self.delay_s = 0.0
        self.bytes_per_s = 0.0
        self.loses_new = False
        self.pairs: set[Pair] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<Link {self.host}:{self.port} to {self.target[0]}:{self.target[1]}, {len(self.pairs)} connections>"

    async def start(self) -> "Link":
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Side(Pair(self)), self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await asyncio.sleep(0)

    def heal(self) -> None:
        """Behave again. Connections whose bytes were lost are reset: the other side knows them no longer."""
        self.delay_s = self.bytes_per_s = 0.0
        self.loses_new = False
        for pair in [each for each in self.pairs if each.is_lost]:
            pair.reset()

    def lose(self, which: Loss) -> None:
        """Swallow what is sent from now on, and let neither side know."""
        self.loses_new = which == "all"
        for pair in self.pairs:
            pair.is_lost = True

    def reset(self) -> None:
        """End every connection with RST on both sides."""
        for pair in list(self.pairs):
            pair.reset()


class Pair:
    """One connection: the side that came in, and the one that goes out once it is made."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_lost = link.loses_new
        self.sides: list[Side] = []
        self._connecting: asyncio.Task[None] | None = None

    def add(self, side: "Side") -> None:
        """A side is connected; the first brings about the second."""
        self.sides.append(side)
        if len(self.sides) == 1:
            self.link.pairs.add(self)
            self._connecting = asyncio.create_task(self._connect())
            return
        first, second = self.sides
        first.peer, second.peer = second, first
        first.flush()

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Side(self), *self.link.target)
        except OSError:
            self.reset()  # as near to a refusal as a relay can come

    def close(self) -> None:
        """End both sides in order."""
        self.link.pairs.discard(self)
        for side in self.sides:
            side.transport.close()

    def reset(self) -> None:
        """End both sides at once."""
        self.link.pairs.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        for side in self.sides:
            side.reset()


class Side(asyncio.Protocol):
    """One socket of a pair: what it receives goes to its peer, when the link lets it."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.peer: Side | None = None
        self.transport: asyncio.Transport
        self.has_ended = False
        """Its end has been passed on: nothing more comes from it."""
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._line_free_s = 0.0
        self._loop = asyncio.get_running_loop()

    def reset(self) -> None:
        """End this socket with RST."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.transport.is_closing():
            connection = self.transport.get_extra_info("socket")
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the pair."""
        self.transport = cast(asyncio.Transport, transport)
        self.pair.add(self)

    def data_received(self, data: bytes) -> None:
        """Pass on, now or later, or lose."""
        if not self.pair.is_lost:
            self._pass(data)

    def eof_received(self) -> bool:
        """Pass on the end of one direction; the other stays open."""
        if not self.pair.is_lost:
            self._pass(_EOF)
        return True

    def pause_writing(self) -> None:
        """Let the peer's sender wait."""
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let it go on."""
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone, and so is its peer, unless it must not know."""
        if not self.pair.is_lost:
            self.pair.reset() if exc else self._pass(_EOF, ends=True)

    def _pass(self, data: bytes, *, ends: bool = False) -> None:
        link, now = self.pair.link, self._loop.time()
        due_s = now + link.delay_s
        if link.bytes_per_s:
            self._line_free_s = max(self._line_free_s, now) + len(data) / link.bytes_per_s
            due_s += self._line_free_s - now
        if due_s <= now and not self._queue and self.peer is not None:
            self._deliver(data)
        else:
            self._queue.append((max(due_s, self._queue[-1][0] if self._queue else 0.0), data))
            self._schedule()
        if ends:
            self._loop.call_later(max(0.0, due_s - now) + 0.05, self.pair.reset)

    def _schedule(self) -> None:
        if self._timer is None and self._queue and self.peer is not None:
            self._timer = self._loop.call_at(self._queue[0][0], self.flush)

    def flush(self) -> None:
        """Deliver what is due."""
        self._timer = None
        now = self._loop.time() + 0.001  # timers of uvloop have whole milliseconds
        while self._queue and self._queue[0][0] <= now:
            data = self._queue.popleft()[1]
            if not self.pair.is_lost:
                self._deliver(data)
        self._schedule()

    def _deliver(self, data: bytes) -> None:
        if self.peer is None or self.peer.transport.is_closing():
            return
        if data:
            self.peer.transport.write(data)
            return
        self.has_ended = True
        if self.peer.has_ended:  # both directions: a transport that was told to stay open at EOF does not see it
            self.pair.close()
        elif self.peer.transport.can_write_eof():
            self.peer.transport.write_eof()
