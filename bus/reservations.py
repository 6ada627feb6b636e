"""Reservations: a replica's leases on the near future of instances. Knows the scripts, not the strategies.

A reservation ends exactly once, whoever comes first: settled by the worker's publish that counts its request, given
back here because it was not delivered, or expired. Nothing is ever retried: a lost reply costs at most the grace period
of one reservation counted too much. A bus that does not answer is asked again after a pause: it costs a choice now and
then its time, not each.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from bus.errors import BusUnavailable
from bus.in_transit import GRACE_MS, OLDEST_VIEW_US, InTransit, Offer, Reserved
from bus.keys import reserved_key
from bus.scripts import Commands, Script

log = logging.getLogger("forebay.bus")

#: After so many failures in a row, each asked after the one before it had failed, the bus is not asked for a while.
FAILURES: Final = 3

#: The pause after that; it doubles with each further failure.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0

_process = secrets.token_hex(6)
_numbers = itertools.count()


def new_reservation_id() -> str:
    """Id that no other process makes, and this one once."""
    return f"{_process}-{next(_numbers):x}"


class Reservations:
    """Reserves at the instances of one pool; the time limit of `client` is how long a choice may take."""

    def __init__(
        self, client: Commands, pool: str, *, grace_ms: int = GRACE_MS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pool = pool
        self.made = 0
        self.failures = 0
        self.not_asked = 0
        self._clock = clock
        self._failures_in_a_row = 0
        self._failed_at_s = float("-inf")
        self._pause_until_s = float("-inf")
        self.too_late = 0
        self.given_back = 0
        self._reserve = Script(client, "reserve")
        self._give_back = Script(client, "give_back")
        self._keys: dict[str, str] = {}
        self._grace_ms = grace_ms
        self._giving_back: set[asyncio.Task[None]] = set()

    def outcomes(self) -> dict[str, int]:
        """Choices so far by what became of them on the bus: failed, not_asked and too_late ones were decided alone."""
        return {
            "made": self.made,
            "failed": self.failures,
            "not_asked": self.not_asked,
            "too_late": self.too_late,
            "given_back": self.given_back,
        }

    async def prepare(self) -> None:
        """Open the connection and load the scripts, so that the first choice finds both; a fault is its to meet."""
        with contextlib.suppress(BusUnavailable):
            await self._reserve.load()
            await self._give_back.load()

    async def choose(self, offers: Sequence[Offer], *, reservation: str, tokens: int, view_us: int) -> Reserved | None:
        """Choose among at most 16 offers and reserve `tokens` there under the id `reservation`.

        `view_us` is the server time of the view behind the offers. None: the bus did not answer in time, or the view
        was too old when it did, or was not asked so soon after it did not; the caller decides alone.
        """
        asked_at_s = self._clock()
        if asked_at_s < self._pause_until_s:
            self.not_asked += 1
            return None
        args: list[str | bytes | int] = [reservation, max(1, tokens), self._grace_ms, view_us, OLDEST_VIEW_US]
        for offer in offers:
            args += (
                repr(offer.score),
                repr(offer.per_token),
                repr(offer.per_request),
                offer.tokens_seen,
                offer.requests_seen,
            )
        try:
            reply = await self._reserve([self._key(offer.instance) for offer in offers], args)
        except BusUnavailable as fault:
            self._failed(fault, asked_at_s)
            return None
        self._answered()
        if not reply[0]:
            self.too_late += 1
            return None
        self.made += 1
        return Reserved(
            reply[0] - 1,
            [float(score) for score in reply[1::3]],
            [InTransit(tokens, requests) for tokens, requests in zip(reply[2::3], reply[3::3], strict=True)],
        )

    def give_back(self, instance: str, reservation: str) -> None:
        """End a reservation whose request was not delivered, in the background, once; it may have ended already."""
        task = asyncio.create_task(self._end(instance, reservation), name=f"give back {reservation}")
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def close(self) -> None:
        """Wait for what is being given back."""
        if self._giving_back:
            await asyncio.wait(self._giving_back)

    def _failed(self, fault: BusUnavailable, asked_at_s: float) -> None:
        self.failures += 1
        if asked_at_s <= self._failed_at_s:
            return  # one silence, met by many at once
        now_s = self._failed_at_s = self._clock()
        self._failures_in_a_row += 1
        beyond = self._failures_in_a_row - FAILURES
        if beyond >= 0:
            self._pause_until_s = now_s + min(FIRST_PAUSE_S * 2**beyond, LONGEST_PAUSE_S)
        if beyond == 0:
            log.warning("pool %s: nothing can be reserved (%s): this replica chooses alone", self.pool, fault)

    def _answered(self) -> None:
        if self._failures_in_a_row >= FAILURES:
            log.warning("pool %s: reservations are made again", self.pool)
        self._failures_in_a_row = 0

    def _key(self, instance: str) -> str:
        key = self._keys.get(instance)
        if key is None:
            key = self._keys[instance] = reserved_key(self.pool, instance)
        return key

    async def _end(self, instance: str, reservation: str) -> None:
        try:
            has_ended = await self._give_back([self._key(instance)], [reservation])
            self.given_back += has_ended
        except BusUnavailable as fault:
            self.failures += 1
            log.debug("reservation %s could not be given back (%s): it expires", reservation, fault)
