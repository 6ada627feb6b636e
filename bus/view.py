"""What a replica knows of its pool at one moment, and how that knowledge ages. No Redis, no clock.

Times: `server_us` is Redis server time, microseconds; `now_s` is any monotonic clock of this process. The two are
never compared: the age of a record is server time minus server time, plus a duration measured here since the reading.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from bus.record import DURATIONS, PressureRecord
from bus.registration import Registration, RegistrationEntry

_DURATIONS: Final = frozenset(DURATIONS)


#: Faults of a record that its worker has not renewed: judged by the reader, by the bus.
_GONE: Final = ("expired", "missing")

#: Fault of an instance that the reading left out, since the pool is large: nothing is known, nor was it asked for.
NOT_READ: Final = "not read"


class Reading(msgspec.Struct, frozen=True):
    """One instance as it was read: its registration, and its record as far as that could be believed."""

    instance: str
    entry: RegistrationEntry | None
    record: PressureRecord | None
    published_us: int | None
    """Server time at which the record was stored."""
    fault: str | None = None
    """Why `record` is None."""
    bad_signals: tuple[str, ...] = ()
    in_transit_tokens: int = 0
    """Reserved there by all replicas, and in no record yet."""
    in_transit_requests: int = 0


class Pressure(msgspec.Struct, frozen=True):
    """One instance as a selection sees it: alive or not, and what is known of it now."""

    instance: str
    registration: Registration
    record: PressureRecord | None
    """None: unknown."""
    age_ms: float | None
    """Age of the record, milliseconds; None where there is none."""
    fault: str | None
    """Why the record is unknown: "expired", "missing", "does not decode", "epoch of another worker", …"""
    bad_signals: tuple[str, ...] = ()
    in_transit_tokens: int = 0
    in_transit_requests: int = 0

    def signal(self, name: str) -> float | None:
        """Value of a signal now, a predicted duration aged; None: unknown.

        A duration shrinks with the age of its record, though never by more than a heartbeat: a worker that has stopped
        publishing must not look as if its queue were emptying.
        """
        if self.record is None:
            return None
        value: float | None = getattr(self.record, name)
        if value is None or name not in _DURATIONS or self.age_ms is None:
            return value
        return aged_ms(value, age_ms=self.age_ms, heartbeat_ms=self.registration.heartbeat_ms)


def aged_ms(published_ms: float, *, age_ms: float, heartbeat_ms: float) -> float:
    """A predicted duration of `published_ms`, `age_ms` after it was published, in [0, published_ms].

    >>> aged_ms(800, age_ms=300, heartbeat_ms=500)
    500
    >>> aged_ms(800, age_ms=1400, heartbeat_ms=500)
    300
    >>> aged_ms(200, age_ms=300, heartbeat_ms=500)
    0
    """
    return max(0, published_ms - min(age_ms, heartbeat_ms))


def parse_published_us(raw: bytes | None) -> int | None:
    """Server time in microseconds as the bus stores it; None if it is no such time.

    >>> parse_published_us(b"1700000000000000"), parse_published_us(b"-1"), parse_published_us(None)
    (1700000000000000, None, None)
    """
    return int(raw) if raw is not None and len(raw) <= 16 and raw.isdigit() else None


def time_fault(published_us: int | None, *, server_us: float, ttl_ms: float) -> str | None:
    """Why a record published then cannot be used at `server_us`; None: it can.

    Up to one TTL in the future is believed, as just published: the server's clock may be set back a little, or a
    replica whose clock is behind may take over. More would make a record that never ages.

    >>> time_fault(1_000_000, server_us=2_500_000, ttl_ms=1500), time_fault(1_000_000, server_us=2_500_001, ttl_ms=1500)
    (None, 'expired')
    """
    if published_us is None:
        return "no publishing time"
    age_ms = (server_us - published_us) / 1000
    if age_ms > ttl_ms:
        return "expired"
    return "published in the future" if age_ms < -ttl_ms else None


class PoolView(msgspec.Struct, frozen=True):
    """All instances of a pool, as one round trip found them."""

    pool: str
    server_us: int
    read_at_s: float
    """When it was read, on the reader's own monotonic clock, seconds."""
    readings: Mapping[str, Reading]
    standing_us: int
    """Server time at which registrations are judged: that of the reading, or, while workers have not had the time to
    renew them after an outage of the bus, that of the last reading before it."""

    def age_s(self, now_s: float) -> float:
        """Seconds since this view was read."""
        return max(0.0, now_s - self.read_at_s)

    def live(self, now_s: float, *, is_read: bool = True) -> list[Pressure]:
        """The instances that were read and whose registration stands, each with what is known of it at `now_s`.

        With `is_read` false those that were not read, of which nothing is known but where they are.

        Records age with the view, registrations do not: while the bus is silent no worker can renew its own, and an
        engine that was there when the bus fell silent can still be asked.
        """
        server_us = self.server_us + self.age_s(now_s) * 1e6
        found = []
        for reading in self.readings.values():
            entry = reading.entry
            if entry is not None and (reading.fault is not NOT_READ) is is_read and self._stands(entry):
                found.append(_pressure(reading, entry, server_us))
        return found

    def registered(self) -> list[Registration]:
        """Registrations that stand, those of instances that were not read included."""
        entries = (reading.entry for reading in self.readings.values())
        return [entry.registration for entry in entries if entry is not None and self._stands(entry)]

    def registered_instances(self) -> list[str]:
        """Ids of the instances whose registration stands, those that were not read included."""
        return [name for name, reading in self.readings.items() if reading.entry and self._stands(reading.entry)]

    def silent(self) -> list[Pressure]:
        """Instances whose record is gone while others publish, as this reading found them.

        Where all records go the fault is the bus's or ours, and says nothing of any instance. They do not go in the
        same instant: when all fell silent together, the last record of one may be a heartbeat (a third of the TTL)
        older than that of another. When the first of them expires, the youngest is two heartbeats old: only a younger
        one shows that somebody has published since.
        """
        live = self.live(self.read_at_s)
        if not any(p.age_ms is not None and p.age_ms < 2 * p.registration.heartbeat_ms for p in live if p.record):
            return []
        return [pressure for pressure in live if pressure.fault in _GONE]

    def has_lately_served(self, model: str) -> bool:
        """Whether some instance of this pool has announced the model within the last ten minutes, alive or not."""
        return any(model in each.entry.registration.models for each in self.readings.values() if each.entry)

    def _stands(self, entry: RegistrationEntry) -> bool:
        return entry.expires_us > self.standing_us and entry.registration.state != "gone"


def _pressure(reading: Reading, entry: RegistrationEntry, server_us: float) -> Pressure:
    """Judge one reading at server time `server_us`: whether the record is this worker's, and young enough."""
    registration, published_us = entry.registration, reading.published_us
    record, fault, age_ms = reading.record, reading.fault, None
    if record is not None:
        fault = time_fault(published_us, server_us=server_us, ttl_ms=registration.ttl_ms)
        if fault is None and record.epoch != entry.epoch:
            fault = "epoch of another worker"
        if fault is not None:
            record = None
        if published_us is not None:
            age_ms = max(0.0, (server_us - published_us) / 1000)
    return Pressure(
        reading.instance,
        registration,
        record,
        age_ms,
        fault,
        reading.bad_signals,
        reading.in_transit_tokens,
        reading.in_transit_requests,
    )
