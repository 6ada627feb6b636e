"""Limits of API keys, shared by all replicas: leases for what is in flight, a bucket of tokens that drains evenly.

Knows the scripts, not the keys: a limit is an argument. Nothing is retried; a lost reply costs a lease until its end.
"""

from typing import Final

import msgspec

from bus.keys import api_key_keys
from bus.scripts import Commands, Script

#: Life of a lease; whoever holds one renews it in time. A replica that dies leaves its leases this long.
LEASE_MS: Final = 60_000


class Limits(msgspec.Struct, frozen=True):
    """What one API key may do; 0: no limit."""

    inflight: int = 0
    """Requests at once."""
    tokens_per_minute: int = 0
    """Tokens read and written, in a bucket of a minute's size."""


class Verdict(msgspec.Struct, frozen=True):
    """What the limits say to one request."""

    is_let_in: bool
    limit: str = ""
    """The one that is reached: "inflight" or "tokens_per_minute"."""
    retry_after_s: float = 0.0


class KeyLimits:
    """Asks the bus; every call raises BusUnavailable when it does not answer."""

    def __init__(self, client: Commands) -> None:
        self._take = Script(client, "take_key")
        self._settle = Script(client, "settle_key")

    async def take(self, name: str, limits: Limits, *, lease: str, tokens: int) -> Verdict:
        """Let one request in, or say why not; `lease` is its id, `tokens` what it is expected to spend."""
        lease_ms = LEASE_MS if limits.inflight else 0
        args = (lease, lease_ms, limits.inflight, limits.tokens_per_minute, tokens)
        verdict, wait_ms = await self._take(api_key_keys(name), args)
        if verdict < 0:
            return Verdict(False, "inflight", 1.0)
        return Verdict(True) if verdict else Verdict(False, "tokens_per_minute", wait_ms / 1000)

    async def renew(self, name: str, *, lease: str) -> None:
        """Let a lease live on; one that the bus has lost stands again, whatever the limit."""
        await self._take(api_key_keys(name), (lease, LEASE_MS, 0, 0, 0))

    async def settle(self, name: str, limits: Limits, *, lease: str, correction: int) -> None:
        """End one request; `correction` is what it spent beyond what was taken."""
        args = (lease if limits.inflight else "", limits.tokens_per_minute, correction)
        await self._settle(api_key_keys(name), args)
