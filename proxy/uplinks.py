"""Connections to workers: one client for each, to allowed addresses only, with the secret and the CA they need.

Owns the clients, what names resolve to, and what was refused. Knows nothing of requests or of choosing.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bus.hop.client import HopClient
from bus.hop.errors import CannotConnect
from bus.hop.headers import SECRET, RawHeaders
from bus.hop.secrets import read_secret
from bus.hop.tls import client_tls
from proxy.config import ProxyConfig
from proxy.networks import Networks, origin_of

log = logging.getLogger("forebay.proxy")

#: Idle connections to workers are reused this long; workers keep theirs for 75 s.
IDLE_S: Final = 30.0

#: Names are looked up again after this long, as long as somebody asks for them.
LOOK_UP_EVERY_S: Final = 15.0

#: Names and refused URLs kept in mind: whoever forges records must not fill this process's memory.
MOST_KEPT: Final = 4096


class AddressRefused(CannotConnect):
    """A worker's name resolves to no address that may be dialled."""


class _Name(msgspec.Struct):
    """What is known of a host name."""

    is_allowed: bool = True
    """Taken for allowed until it has been looked up: what is dialled is checked anyway."""
    looked_up_at_s: float = float("-inf")
    asked_at_s: float = 0.0


class Uplinks:
    """Clients by worker URL. Raises SecretUnusable, TlsUnusable, ValueError for a configuration that cannot be used."""

    def __init__(self, config: ProxyConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.refusals = 0
        """Worker URLs refused, each once."""
        self._networks = Networks(config.worker_networks)
        self._connect_timeout_s = config.connect_timeout_ms / 1000
        self._tls = client_tls(config.worker_ca)
        self._needs_tls = bool(config.worker_ca)
        secret = read_secret(config.secret_file)
        self._standing: RawHeaders = [(SECRET.encode(), secret.reveal())] if secret else []
        self._clock = clock
        self._clients: dict[str, HopClient] = {}
        self._names: dict[str, _Name] = {}
        self._refused: dict[str, None] = {}  # an ordered set

    def client(self, worker_url: str) -> HopClient:
        """Client of a worker."""
        client = self._clients.get(worker_url)
        if client is None:
            client = self._clients[worker_url] = HopClient(
                worker_url,
                connect_timeout_s=self._connect_timeout_s,
                idle_s=IDLE_S,
                tls=self._tls,
                resolve=self._addresses,
                standing=self._standing,
            )
        return client

    def admits(self, worker_url: str) -> bool:
        """Whether a worker at this URL may be dialled, as far as is known; a refusal is logged and counted once."""
        origin = origin_of(worker_url)
        if origin is None:
            return self._refuse(worker_url, "it is no plain http://HOST:PORT")
        if self._needs_tls and not origin.is_tls:
            return self._refuse(worker_url, "with --worker-ca workers must speak TLS")
        verdict = self._networks.judge(origin.host)
        is_allowed = self._asked_for(origin.host) if verdict == "depends" else verdict == "allowed"
        return is_allowed or self._refuse(worker_url, "its address is in none of --worker-networks")

    async def look_up(self) -> None:
        """Find out anew where names point; those that nobody asks for are forgotten."""
        now = self._clock()
        self._names = {host: name for host, name in self._names.items() if now - name.asked_at_s < 60.0}
        due = [host for host, name in self._names.items() if now - name.looked_up_at_s >= LOOK_UP_EVERY_S]
        for host in due:
            self._names[host].looked_up_at_s = now
        await asyncio.gather(*(self._look_up(host) for host in due))

    def forget_all_but(self, worker_urls: set[str]) -> None:
        """Close connections to workers that are gone, and those that have been idle for long."""
        for url in self._clients.keys() - worker_urls:
            self._clients.pop(url).close()
        for client in self._clients.values():
            client.drop_stale()

    def close(self) -> None:
        """Close every idle connection."""
        self.forget_all_but(set())

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a worker that may be dialled; they are dialled as they were checked."""
        verdict = self._networks.judge(host)
        if verdict == "allowed":
            return (host,)
        found = await _resolved(host, port) if verdict == "depends" else ()
        allowed = [address for address in found if self._networks.covers(address)]
        if not allowed:
            raise AddressRefused(f"{host}: no address in --worker-networks")
        return allowed

    async def _look_up(self, host: str) -> None:
        try:
            found = await _resolved(host, 0)
        except (OSError, UnicodeError):
            return  # a name server that is silent proves nothing: dialling will fail, or be checked
        name = self._names.get(host)
        if name is not None:
            name.is_allowed = any(map(self._networks.covers, found))

    def _asked_for(self, host: str) -> bool:
        name = self._names.get(host)
        if name is None:
            if len(self._names) >= MOST_KEPT:
                return False
            name = self._names[host] = _Name()
        name.asked_at_s = self._clock()
        return name.is_allowed

    def _refuse(self, worker_url: str, why: str) -> bool:
        if worker_url not in self._refused:
            if len(self._refused) >= MOST_KEPT:
                del self._refused[next(iter(self._refused))]
            self._refused[worker_url] = None
            self.refusals += 1
            log.warning("a registration on the bus names the worker %r: refused, %s", worker_url[:200], why)
        return False


async def _resolved(host: str, port: int) -> list[str]:
    """Addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
