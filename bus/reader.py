"""The reading side of the bus: one round trip for a whole pool, shared by all selections that wait at the same time.

`Reader.view` never raises and never waits longer than its budget, or twice that where a reading for another model is
under way: it returns the freshest view there is, and the view itself says how old it is. What a view is worth when it
is old is decided in bus/view.py.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

from bus.errors import BusUnavailable, InvalidName
from bus.keys import checked_instance, instances_key, pressure_key, reserved_key
from bus.record import MAX_RECORD_BYTES, Decoded, decode_record
from bus.registration import MAX_ENTRY_BYTES, REMEMBERED_MS, RegistrationEntry, decode_entry
from bus.scripts import Commands, Script
from bus.view import NOT_READ, PoolView, Reading, parse_published_us, time_fault

log = logging.getLogger("forebay.bus")

#: Registrations change rarely and are large: they are read again after this long, or when an epoch does not fit.
REGISTRATIONS_EVERY_S: Final = 0.5

#: After a failed reading the next one is tried this much later, so that a dead bus costs one budget a pause, not each
#: request one.
PAUSE_AFTER_FAULT_S: Final = 0.1

#: After an outage of the bus the registrations that stood before it stand this much longer: time for some heartbeats,
#: with which the workers renew them.
RECOVERY_S: Final = 2.0

#: Largest pool that is read as a whole. Of a larger one each reading asks for this many instances of a model, drawn
#: anew: the best of them is among the best of all, and the cost of a choice no longer grows with the fleet. In
#: simulation p99 TTFT with 32 is that of the whole pool (0.97 to 1.00 times, 100 and 300 instances, equal and unequal,
#: 8 replicas), with 16 up to 1.05 times (`make simulate`).
SAMPLE: Final = 32

#: What a reading asks for: a model's instances (None: any model's), or everything.
Scope = str | None
EVERYTHING: Final = "*everything*"

BusState = Literal["fresh", "stale", "blind"]


class Reader:
    """Reads the pressure of one pool; one reader a pool and process.

    `budget_s` bounds how long a caller waits; `clock` is monotonic, in seconds. An instance whose `worker_url` is not
    admitted does not exist.
    """

    def __init__(
        self,
        client: Commands,
        pool: str,
        *,
        budget_s: float = 0.025,
        admits: Callable[[str], bool] = lambda worker_url: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.faults: Counter[str] = Counter()
        """How often what was read could not be believed, by reason."""
        self.read_failures = 0
        self.reads = 0
        self._script = Script(client, "read_pool")
        self._instances_key = instances_key(pool)
        self._budget_s = budget_s
        self._admits = admits
        self._clock = clock
        self._view = PoolView(pool, 0, float("-inf"), {}, 0)
        self._keys: dict[str, tuple[str, str]] = {}
        self._entries: dict[str, RegistrationEntry] = {}
        self._entries_at_s = float("-inf")
        self._decoded: dict[str, tuple[bytes | None, Decoded]] = {}
        self._time_faults: dict[str, tuple[str, bytes | None]] = {}
        self._unread: dict[str, Reading] = {}
        self._by_model: dict[Scope, list[str]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._scope: Scope = EVERYTHING
        self._reading_since_s = float("-inf")
        self._recovered_at_s = float("-inf")
        self._pause_until_s = float("-inf")
        self._is_answering: bool | None = None

    async def view(self, scope: Scope = EVERYTHING) -> PoolView:
        """The freshest view to be had within the budget; on any fault the last one.

        `scope` is a model, None for any, or EVERYTHING; it matters only where the pool is larger than SAMPLE.
        """
        asked_at_s = self._clock()
        while self._reading is not None and not self._serves(scope):
            if self._left_s() <= 0:
                return self._view  # it hangs, and nobody waits for it
            await self._wait()  # for the reading of another model, then for our own
            if self._clock() - asked_at_s >= self._budget_s:
                return self._view
        if self._reading is None:
            if self._clock() < self._pause_until_s:
                return self._view
            self._scope = scope
            self._reading = asyncio.create_task(self._read(), name=f"read {self.pool}")
            self._reading.add_done_callback(self._forget_reading)
            self._reading_since_s = self._clock()
        await self._wait()
        return self._view

    def _serves(self, scope: Scope) -> bool:
        """Whether the reading under way asks for what `scope` needs."""
        return self._scope in (scope, EVERYTHING) or len(self._entries) <= SAMPLE

    def _left_s(self) -> float:
        """How long the reading under way is waited for: one that hangs costs one budget, not each caller one."""
        return self._reading_since_s + self._budget_s - self._clock()

    async def _wait(self) -> None:
        left_s = self._left_s()
        if left_s > 0 and self._reading is not None:
            await asyncio.wait((self._reading,), timeout=left_s)

    @property
    def last_view(self) -> PoolView:
        """The view that the last successful reading left."""
        return self._view

    def state(self, now_s: float) -> BusState:
        """How this replica sees: fresh, stale (living on an old view that still says something), or blind."""
        if self._is_answering and self._view.age_s(now_s) < 1.0:
            return "fresh"
        return "stale" if any(p.record for p in self._view.live(now_s)) else "blind"

    async def close(self) -> None:
        """End a reading that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    def _forget_reading(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    async def _read(self) -> None:
        """One reading; twice where the registrations show an instance that the first had not asked for."""
        try:
            is_complete = await self._read_once(self._wants_registrations())
            if not is_complete:
                await self._read_once(with_registrations=False)
        except BusUnavailable as fault:
            self.read_failures += 1
            self._pause_until_s = self._clock() + PAUSE_AFTER_FAULT_S
            self._note_state(False, str(fault))
        else:
            self._note_state(True, "")

    def _wants_registrations(self) -> bool:
        return self._clock() - self._entries_at_s >= REGISTRATIONS_EVERY_S

    async def _read_once(self, with_registrations: bool) -> bool:
        """Ask, and store what came; False if there are instances that were not asked for."""
        asked = self._drawn()
        keys = [self._instances_key, *(key for instance in asked for key in self._keys_of(instance))]
        reply: list[Any] = await self._script(keys, (int(with_registrations), MAX_RECORD_BYTES, MAX_ENTRY_BYTES))
        self.reads += 1
        now_s = self._clock()
        seconds, microseconds, registrations, *pressures = reply
        if with_registrations:
            self._take_registrations(registrations or (), now_s)
        server_us = int(seconds) * 1_000_000 + int(microseconds)
        self._forget_long_gone(server_us)
        read = {
            instance: self._reading_of(instance, self._entries[instance], server_us, *pressure)
            for instance, pressure in zip(asked, pressures, strict=True)
            if instance in self._entries
        }
        is_sample = len(self._entries) > SAMPLE and self._scope != EVERYTHING
        readings = {**self._unread, **read} if is_sample else read
        self._view = PoolView(self.pool, server_us, now_s, readings, self._standing_us(server_us, now_s))
        return is_sample or len(read) == len(self._entries)

    def _drawn(self) -> list[str]:
        """Instances that this reading asks for."""
        if len(self._entries) <= SAMPLE or self._scope == EVERYTHING:
            return list(self._entries)
        found = self._by_model.get(self._scope, [])
        return random.sample(found, SAMPLE) if len(found) > SAMPLE else found

    def _keys_of(self, instance: str) -> tuple[str, str]:
        """Keys of an instance's pressure and of what is reserved there; made once."""
        keys = self._keys.get(instance)
        if keys is None:
            keys = self._keys[instance] = pressure_key(self.pool, instance), reserved_key(self.pool, instance)
        return keys

    def _standing_us(self, server_us: int, now_s: float) -> int:
        """Server time at which registrations are judged, see PoolView."""
        if self._is_answering is False:
            self._recovered_at_s = now_s
        is_recovering = now_s - self._recovered_at_s < RECOVERY_S
        return self._view.standing_us if is_recovering and self._view.standing_us else server_us

    def _take_registrations(self, flat: list[bytes] | tuple[()], now_s: float) -> None:
        """Merge what the hash holds into what is known.

        A worker that leaves says so in its entry, which stays; an entry that is missing means that the bus lost data,
        so what is known is kept until it expires by itself.
        """
        entries = dict(self._entries)
        for raw_instance, raw_entry in zip(flat[::2], flat[1::2], strict=True):
            try:
                instance = checked_instance(raw_instance.decode())
            except (InvalidName, UnicodeDecodeError):
                self.faults["registration"] += 1
                continue
            entry = decode_entry(raw_entry)
            if entry is None:
                self.faults["registration"] += 1
            elif not self._admits(entry.registration.worker_url):
                entries.pop(instance, None)
            else:
                entries[instance] = entry
        self._entries = entries
        self._entries_at_s = now_s
        if len(entries) > SAMPLE:
            self._index()

    def _index(self) -> None:
        """Sort the instances of a large pool by model, so that a sample can be drawn without looking at each."""
        self._unread = {name: Reading(name, entry, None, None, NOT_READ) for name, entry in self._entries.items()}
        self._by_model = {None: list(self._entries)}
        for name, entry in self._entries.items():
            for model in entry.registration.models:
                self._by_model.setdefault(model, []).append(name)

    def _forget_long_gone(self, server_us: int) -> None:
        """Drop what expired ten minutes ago: nobody remembers its models any longer."""
        horizon_us = server_us - REMEMBERED_MS * 1000
        for instance in [name for name, entry in self._entries.items() if entry.expires_us < horizon_us]:
            del self._entries[instance]
            self._decoded.pop(instance, None)
            self._keys.pop(instance, None)
            self._time_faults.pop(instance, None)

    def _reading_of(
        self,
        instance: str,
        entry: RegistrationEntry,
        server_us: int,
        raw: bytes | None,
        published: bytes | None,
        length: int,
        in_transit_tokens: int,
        in_transit_requests: int,
    ) -> Reading:
        decoded = self._decode(instance, raw, length)
        published_us = parse_published_us(published)
        if decoded.record is not None:
            if decoded.record.epoch > entry.epoch:
                self._entries_at_s = float("-inf")  # a new worker: its address comes with the next reading
            fault = time_fault(published_us, server_us=server_us, ttl_ms=entry.registration.ttl_ms)
            self._count_time_fault(instance, fault, published)
        return Reading(
            instance,
            entry,
            decoded.record,
            published_us,
            decoded.fault,
            decoded.bad_signals,
            in_transit_tokens,
            in_transit_requests,
        )

    def _count_time_fault(self, instance: str, fault: str | None, published: bytes | None) -> None:
        """Count a time that cannot be believed once for each such time, as records are."""
        if fault is None:
            self._time_faults.pop(instance, None)
        elif self._time_faults.get(instance) != (fault, published):
            self._time_faults[instance] = (fault, published)
            self.faults[fault] += 1

    def _decode(self, instance: str, raw: bytes | None, length: int) -> Decoded:
        """Decode a record unless it is the very one decoded last; faults are counted once a record."""
        known_raw, known = self._decoded.get(instance, (b"", None))
        if known is not None and raw == known_raw and raw is not None:
            return known
        if length > MAX_RECORD_BYTES:
            decoded = Decoded(None, "too large")
        elif length < 0:
            decoded = Decoded(None, "not a hash")
        else:
            decoded = decode_record(raw)
        if known is None or (raw, decoded) != (known_raw, known):
            self._count(decoded)
        self._decoded[instance] = (raw, decoded)
        return decoded

    def _count(self, decoded: Decoded) -> None:
        if decoded.fault is not None:
            self.faults[decoded.fault] += 1
        for name in decoded.bad_signals:
            self.faults[f"signal {name}"] += 1

    def _note_state(self, is_answering: bool, why: str) -> None:
        """Log changes of state only: a blip must not flood the log."""
        if is_answering == self._is_answering:
            return
        if not is_answering:
            log.warning(
                "pool %s: the bus does not answer (%s); choosing by the last view, then by own counts", self.pool, why
            )
        elif self._is_answering is not None:
            log.warning("pool %s: the bus answers again", self.pool)
        self._is_answering = is_answering
