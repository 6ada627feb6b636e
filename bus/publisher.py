"""The writing side of the bus: one publisher owns the record and the registration of one instance.

Publishes on change (coalesced) and at every heartbeat, in server time, fenced by epoch. Asks a callback for the record;
knows nothing of queues or engines.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from bus.errors import BusUnavailable
from bus.keys import checked_instance, instances_key, pressure_key, reserved_key
from bus.record import PressureRecord, encode_record
from bus.registration import REMEMBERED_MS, Registration, encode_registration
from bus.scripts import Commands, Script

log = logging.getLogger("forebay.bus")

#: Changes that come closer together than this share one record.
COALESCE_S: Final = 0.020

#: After a fault changes wait this long, so that a bus that is coming up is not met by a storm of attempts.
PAUSE_AFTER_FAULT_S: Final = 0.1

#: Reservations kept until a publish succeeds: while the bus is away they expire by themselves, the oldest first.
MOST_UNSETTLED: Final = 10_000


class Publisher:
    """Publishes the pressure of one instance until another worker takes the instance over.

    `make_record(epoch, sequence)` is called at the moment of each publish; `registration()` whenever the registration
    is announced or renewed. `on_superseded()` is called once if a newer worker owns the instance.
    """

    def __init__(
        self,
        client: Commands,
        *,
        pool: str,
        instance: str,
        make_record: Callable[[int, int], PressureRecord],
        registration: Callable[[], Registration],
        on_superseded: Callable[[], None],
        registration_ttl_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance = checked_instance(instance)
        self.epoch = 0
        """0 until the bus has given one."""
        self.sequence = 0
        self.published = 0
        self.settled = 0
        """Reservations that a publish ended; those that arrive and have expired by then are not among them."""
        self.last_record: PressureRecord | None = None
        """What was last stored."""
        self.failures = 0
        self.is_superseded = False
        self.is_withdrawn = False
        self._publish = Script(client, "publish")
        self._register = Script(client, "register")
        self._pressure_key = pressure_key(pool, instance)
        self._reserved_key = reserved_key(pool, instance)
        self._arrived: dict[str, None] = {}  # an ordered set
        self._instances_key = instances_key(pool)
        self._make_record = make_record
        self._registration = registration
        self._on_superseded = on_superseded
        self._registration_ttl_s = registration_ttl_s
        self._clock = clock
        self._change = asyncio.Event()
        self._published_at_s = float("-inf")
        self._registered_at_s = float("-inf")
        self._is_answering: bool | None = None

    def changed(self) -> None:
        """Something that the record tells has changed: publish soon."""
        self._change.set()

    def arrived(self, reservation: str) -> None:
        """The request of a reservation is in what `make_record` counts: the next publish settles it."""
        if len(self._arrived) >= MOST_UNSETTLED:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[reservation] = None
        self._change.set()

    def announce(self) -> None:
        """What the registration tells has changed: announce it with the next publish."""
        self._registered_at_s = float("-inf")
        self._change.set()

    async def run(self) -> None:
        """Publish until cancelled, superseded or withdrawn; a bus that does not answer is tried again."""
        while not self._is_over:
            self._change.clear()
            await self.publish_now()
            await self._wait_for_change()

    async def publish_now(self) -> None:
        """Announce the instance if that is due, then publish one record; on a fault only count it and say so once."""
        if self._is_over:
            return
        try:
            if self._clock() - self._registered_at_s >= self._registration_ttl_s / 3:
                await self._announce(self._registration(), self._registration_ttl_s)
            if not self._is_over:
                await self._publish_record()
        except BusUnavailable as fault:
            self.failures += 1
            self._note_state(False, str(fault))
        else:
            self._note_state(True, "")
        self._published_at_s = self._clock()

    async def withdraw(self, registration: Registration) -> None:
        """Say that the instance is gone, and publish no more: its entry stays as a memory of its models.

        A fault is only logged. Nothing announces the instance again, whatever a publish that is under way finds.
        """
        self.is_withdrawn = True
        self._change.set()
        try:
            if self.epoch and not self.is_superseded:
                await self._announce(registration, 0)
        except BusUnavailable as fault:
            log.warning(
                "instance %s: could not be withdrawn (%s); its registration expires by itself", self.instance, fault
            )

    @property
    def _is_over(self) -> bool:
        return self.is_superseded or self.is_withdrawn

    async def _announce(self, registration: Registration, lifetime_s: float) -> None:
        self._registered_at_s = self._clock()  # before the answer: what announce() asks for meanwhile must stay asked
        try:
            is_stored, epoch = await self._register(
                (self._instances_key, self._pressure_key),
                (self.instance, self.epoch, int(lifetime_s * 1000), REMEMBERED_MS, encode_registration(registration)),
            )
        except BusUnavailable:
            self._registered_at_s = float("-inf")
            raise
        if is_stored:
            self.epoch = int(epoch)
        else:
            self._give_way(int(epoch))

    async def _publish_record(self) -> None:
        self.sequence += 1
        record = self._make_record(self.epoch, self.sequence)
        settled = list(self._arrived)
        ttl_ms = self._registration().ttl_ms
        is_stored, detail, *settled_now = await self._publish(
            (self._pressure_key, self._instances_key, self._reserved_key),
            (encode_record(record), self.epoch, self.sequence, ttl_ms, self.instance, *settled),
        )
        if not is_stored:
            self._meet(int(detail))
        else:
            self.published += 1
            self.settled += settled_now[0]
            self.last_record = record
            for reservation in settled:
                self._arrived.pop(reservation, None)
            if not detail:
                self.announce()  # the bus lost the registration: not at the next renewal, now

    def _meet(self, epoch: int) -> None:
        """Another worker owns the instance: a newer one, or one that was given the same epoch.

        That can be after a failover to a copy without the claim of the other. Of two with one epoch, who is
        refused claims a newer one, and the other then gives way; or they would go on taking turns for ever.
        """
        if epoch > self.epoch:
            self._give_way(epoch)
            return
        log.warning("instance %s: another worker has our epoch %d; claiming a new one", self.instance, self.epoch)
        self.epoch = 0
        self.announce()

    def _give_way(self, epoch: int) -> None:
        if self.is_superseded:
            return  # two publishes were under way
        self.is_superseded = True
        self._change.set()
        log.error("instance %s: a newer worker (epoch %d, ours %d) owns it; draining", self.instance, epoch, self.epoch)
        self._on_superseded()

    async def _wait_for_change(self) -> None:
        """Return at the next change, at most every COALESCE_S and at least every heartbeat; after a fault later."""
        heartbeat_s = self._registration().heartbeat_ms / 1000
        try:
            async with asyncio.timeout(heartbeat_s):
                await self._change.wait()
        except TimeoutError:
            return
        least_s = COALESCE_S if self._is_answering else PAUSE_AFTER_FAULT_S
        pause_s = self._published_at_s + least_s - self._clock()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    def _note_state(self, is_answering: bool, why: str) -> None:
        """Log changes of state only."""
        if is_answering == self._is_answering:
            return
        if not is_answering:
            log.warning("instance %s: the bus does not answer (%s); its record will expire", self.instance, why)
        elif self._is_answering is not None:
            log.warning("instance %s: the bus answers again", self.instance)
        self._is_answering = is_answering
