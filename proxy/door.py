"""The door of the API: whose key a request shows, and whether that key's limits let it in.

Without a file of keys the door is open. Refusals are logged at most once a minute, by kind, and counted.
"""

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from aiohttp import web

from bus.errors import ForebayError
from bus.hop.secrets import bearer
from bus.scripts import Commands
from bus.seldom import Seldom
from proxy.key_file import KeyFile
from proxy.keys import ApiKey, find_key
from proxy.limiter import Lease, Limiter, RateLimited

log = logging.getLogger("forebay.proxy")


class KeyRefused(ForebayError):
    """A client without a key, or with one that nobody has."""


class Door:
    """Knows the keys; one for each replica. Raises KeysUnusable if the file cannot be read."""

    def __init__(self, path: str, client: Commands) -> None:
        self.refusals: Counter[str] = Counter()
        """Clients turned away, by reason."""
        self._file = KeyFile(path) if path else None
        self._limiter = Limiter(client)
        self._receiving: Counter[str] = Counter()
        self._said: defaultdict[str, Seldom] = defaultdict(Seldom)

    @property
    def failures(self) -> int:
        """Times the bus did not say what a key may."""
        return self._limiter.failures

    def key_of(self, request: web.BaseRequest) -> ApiKey | None:
        """Whose key a request shows; None where none is needed. Raises KeyRefused."""
        if self._file is None:
            return None
        shown = bearer(request.headers.get("authorization"))
        if not shown:
            self._refused("no_key", request)
            raise KeyRefused("no API key was shown: send it as `Authorization: Bearer KEY`")
        key = find_key(self._file.keys, shown)
        if key is None:
            self._refused("wrong_key", request)
            raise KeyRefused("the API key is not valid")
        return key

    @contextlib.contextmanager
    def receiving(self, key: ApiKey | None, request: web.BaseRequest) -> Iterator[None]:
        """While a body comes in: of a key no more at once than it may have in flight. Raises RateLimited."""
        if key is None or not key.limits.inflight:
            yield
            return
        if self._receiving[key.name] >= key.limits.inflight:
            self._refused("inflight", request, f"of key {key.name}")
            raise RateLimited("inflight", key.limits.inflight, 1.0)
        self._receiving[key.name] += 1
        try:
            yield
        finally:
            self._receiving[key.name] -= 1
            self._receiving += Counter()  # what is at zero goes

    async def let_in(self, key: ApiKey, tokens: int, request: web.BaseRequest) -> Lease:
        """Count a request of a limited key that is expected to spend `tokens`. Raises RateLimited."""
        try:
            return await self._limiter.take(key, tokens)
        except RateLimited as limit:
            self._refused(limit.limit, request, f"of key {key.name}")
            raise

    def let_out(self, lease: Lease, spent_tokens: int | None) -> None:
        """A request that was let in has ended; None: what it spent is not known."""
        self._limiter.end(lease, spent_tokens)

    async def keep(self) -> None:
        """Read a changed file, renew leases; called now and then."""
        if self._file is not None:
            self._file.refresh()
            await self._limiter.renew()

    async def close(self) -> None:
        """Wait for what is under way."""
        await self._limiter.close()

    def _refused(self, reason: str, request: web.BaseRequest, whose: str = "") -> None:
        self.refusals[reason] += 1
        count = self._said[f"{reason} {whose}"].due(time.monotonic())
        if count:
            log.warning(
                "refused a request from %s: %s %s (%d since this was last said)", request.remote, reason, whose, count
            )
