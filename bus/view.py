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


class PoolView(msgspec.Struct, frozen=True):
    """All instances of a pool, as one round trip found them."""

    pool: str
    server_us: int
    read_at_s: float
    """When it was read, on the reader's own monotonic clock, seconds."""
    readings: Mapping[str, Reading]

    def age_s(self, now_s: float) -> float:
        """Seconds since this view was read."""
        return max(0.0, now_s - self.read_at_s)

    def live(self, now_s: float) -> list[Pressure]:
        """The instances whose registration stands, each with what is known of it at `now_s`."""
        server_us = self.server_us + int(self.age_s(now_s) * 1e6)
        found = []
        for reading in self.readings.values():
            entry = reading.entry
            if entry is not None and entry.expires_us > server_us and entry.registration.state != "gone":
                found.append(_pressure(reading, entry, server_us))
        return found

    def lately_served(self) -> frozenset[str]:
        """Models that some instance of this pool has announced within the last ten minutes, alive or not."""
        return frozenset(
            model for reading in self.readings.values() if reading.entry for model in reading.entry.registration.models
        )


def _pressure(reading: Reading, entry: RegistrationEntry, server_us: int) -> Pressure:
    """Judge one reading at server time `server_us`: whether the record is this worker's, and young enough."""
    registration = entry.registration
    record, fault, age_ms = reading.record, reading.fault, None
    if record is not None:
        if reading.published_us is None:
            record, fault = None, "no publishing time"
        else:
            age_ms = max(0.0, (server_us - reading.published_us) / 1000)
            if age_ms > registration.ttl_ms:
                record, fault = None, "expired"
            elif record.epoch != entry.epoch:
                record, fault = None, "epoch of another worker"
    return Pressure(reading.instance, registration, record, age_ms, fault, reading.bad_signals)
