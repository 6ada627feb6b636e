"""Keeps clients within the limits of their keys, with all other replicas through the bus, alone while that is silent.

A limit must never cost an outage: a bus that does not answer within the budget costs one budget a second, and until it
answers this replica's own counts decide.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from bus.errors import BusUnavailable, ForebayError
from bus.key_limits import LEASE_MS, KeyLimits
from bus.reservations import new_reservation_id
from bus.scripts import Commands
from proxy.keys import ApiKey, OwnCounts

log = logging.getLogger("forebay.proxy")

#: After a fault the bus is asked again this much later, s.
PAUSE_S: Final = 1.0

#: A lease is renewed when a third of its life is over, s.
RENEW_S: Final = LEASE_MS / 3000


class RateLimited(ForebayError):
    """A limit of the client's key is reached."""

    def __init__(self, limit: str, most: int, retry_after_s: float) -> None:
        super().__init__(f"rate limit reached: {limit} is {most} for this key")
        self.limit = limit
        self.retry_after_s = retry_after_s


class Lease(msgspec.Struct):
    """One request that was let in."""

    key: ApiKey
    id: str
    tokens: int
    """What it was expected to spend."""
    renewed_at_s: float
    shared_tokens: int = 0
    """Of those what the bus has counted: nothing, where this replica let it in alone."""


class Limiter:
    """Lets requests of limited keys in; `end` is called for each of them, exactly once."""

    def __init__(self, client: Commands, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._bus = KeyLimits(client)
        self._clock = clock
        self._own = OwnCounts()
        self._leases: dict[str, Lease] = {}
        self._paused_until_s = float("-inf")
        self._is_answering = True
        self._settling: set[asyncio.Task[None]] = set()

    async def take(self, key: ApiKey, tokens: int) -> Lease:
        """Let a request in that is expected to spend `tokens`. Raises RateLimited."""
        if key.limits.tokens_per_minute:
            tokens = min(tokens, key.limits.tokens_per_minute)  # more than the bucket holds cannot be told apart
        lease = Lease(key, new_reservation_id(), tokens, self._clock())
        verdict, is_late = None, False
        if self._clock() >= self._paused_until_s:
            try:
                verdict = await self._bus.take(key.name, key.limits, lease=lease.id, tokens=tokens)
                self._note_state(True)
            except BusUnavailable as fault:
                self._failed(fault)
                is_late = fault.is_late
            except asyncio.CancelledError:  # nobody else would end the lease; its tokens stand, or never did
                self._settle_later(lease, 0)
                raise
        if verdict is not None or is_late:
            lease.shared_tokens = tokens  # late: it may have been taken, and to take it twice is worse than not at all
        if verdict is None:
            verdict = self._own.judge(key, tokens, self._clock())
        if not verdict.is_let_in:
            if is_late:
                self._settle_later(lease, 0)
            raise RateLimited(verdict.limit, getattr(key.limits, verdict.limit), verdict.retry_after_s)
        self._own.take(key, tokens, self._clock())
        self._leases[lease.id] = lease
        return lease

    def end(self, lease: Lease, spent_tokens: int | None) -> None:
        """A request has ended; None: what it spent is not known, and the estimate stands."""
        if self._leases.pop(lease.id, None) is None:
            return
        spent = lease.tokens if spent_tokens is None else spent_tokens
        self._own.settle(lease.key, spent - lease.tokens, self._clock())
        self._settle_later(lease, spent - lease.shared_tokens)

    async def renew(self) -> None:
        """Renew the leases that are due; called now and then."""
        now = self._clock()
        due = [one for one in self._leases.values() if one.key.limits.inflight and now - one.renewed_at_s >= RENEW_S]
        if now >= self._paused_until_s:
            await asyncio.gather(*(self._renew(lease, now) for lease in due))

    async def _renew(self, lease: Lease, now: float) -> None:
        lease.renewed_at_s = now
        try:
            await self._bus.renew(lease.key.name, lease=lease.id)
        except BusUnavailable as fault:
            self._failed(fault)
        if lease.id not in self._leases:  # it ended meanwhile: what was renewed has to go again
            await self._settle(lease, 0)

    async def close(self) -> None:
        """Wait for what is being settled."""
        if self._settling:
            await asyncio.wait(self._settling)

    def _settle_later(self, lease: Lease, correction: int) -> None:
        task = asyncio.create_task(self._settle(lease, correction), name=f"settle {lease.id}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, lease: Lease, correction: int) -> None:
        with contextlib.suppress(BusUnavailable):  # the lease expires, and the estimate stands
            await self._bus.settle(lease.key.name, lease.key.limits, lease=lease.id, correction=correction)

    def _failed(self, fault: BusUnavailable) -> None:
        self.failures += 1
        self._paused_until_s = self._clock() + PAUSE_S
        self._note_state(False, fault)

    def _note_state(self, is_answering: bool, fault: BusUnavailable | None = None) -> None:
        if is_answering == self._is_answering:
            return
        self._is_answering = is_answering
        if is_answering:
            log.warning("limits of API keys: the bus answers again; they hold for all replicas together")
        else:
            log.warning("limits of API keys: the bus does not answer (%s); each replica counts alone", fault)
