"""What Redis holds, in virtual time: the last record of each instance, and what is in transit to it.

The choice is made with the arithmetic of bus/in_transit.py, which is what bus/lua/reserve.lua does.
"""

from collections.abc import Sequence

import msgspec

from bus.in_transit import InTransit, Offer, Reserved, choose
from bus.record import PressureRecord
from bus.registration import Registration
from bus.view import Pressure
from tests.routing.loop import Loop


class Reservation(msgspec.Struct, frozen=True):
    """A lease: where, how much, and in whose sums it counts."""

    instance: int
    tokens: int
    owner: int


class Snapshot(msgspec.Struct, frozen=True):
    """The pool as one reading found it."""

    read_s: float
    places: Sequence[int]
    """Numbers of the instances that were asked for; the rest runs parallel."""
    records: Sequence[PressureRecord]
    published_s: Sequence[float]
    in_transit: Sequence[InTransit]


class Store:
    """Records and reservations of a pool; an owner's sums are what a reservation counts in: all replicas' or one's."""

    def __init__(self, loop: Loop, registrations: Sequence[Registration], owners: int) -> None:
        self._loop = loop
        self.names = [f"e{index}" for index in range(len(registrations))]
        self._registrations = registrations
        self._places = {name: index for index, name in enumerate(self.names)}
        self._records: list[PressureRecord] = [PressureRecord(epoch=1, sequence=0)] * len(registrations)
        self._published_s = [0.0] * len(registrations)
        self._in_transit = [[InTransit()] * len(registrations) for _ in range(owners)]

    def publish(self, instance: int, record: PressureRecord, settled: Sequence[Reservation]) -> None:
        """Store a record and settle the reservations that it counts, in one step."""
        self._records[instance] = record
        self._published_s[instance] = self._loop.now
        for reservation in settled:
            self._add(reservation.owner, instance, -reservation.tokens, -1)

    def read(self, owner: int, places: Sequence[int]) -> Snapshot:
        """What is known of the instances of these numbers as it is now."""
        records, published_s, in_transit = self._records, self._published_s, self._in_transit[owner]
        return Snapshot(
            self._loop.now,
            places,
            [records[place] for place in places],
            [published_s[place] for place in places],
            [in_transit[place] for place in places],
        )

    def place(self, instance: str) -> int:
        """Number of an instance."""
        return self._places[instance]

    def reserve(self, owner: int, offers: Sequence[Offer], tokens: int) -> tuple[Reserved, Reservation]:
        """Choose the best of the offers with the sums of now, and reserve there."""
        places = [self._places[offer.instance] for offer in offers]
        reserved = choose(offers, [self._in_transit[owner][place] for place in places])
        reservation = Reservation(places[reserved.index], tokens, owner)
        self._add(owner, reservation.instance, tokens, 1)
        return reserved, reservation

    def pressures(self, snapshot: Snapshot, now: float, *, with_in_transit: bool) -> list[Pressure]:
        """What a replica makes of a snapshot at `now`."""
        return [
            Pressure(
                self.names[place],
                self._registrations[place],
                record,
                max(0.0, now - published_s) * 1000,
                None,
                (),
                sums.tokens if with_in_transit else 0,
                sums.requests if with_in_transit else 0,
            )
            for place, record, published_s, sums in zip(
                snapshot.places, snapshot.records, snapshot.published_s, snapshot.in_transit, strict=True
            )
        ]

    def _add(self, owner: int, instance: int, tokens: int, requests: int) -> None:
        sums = self._in_transit[owner][instance]
        self._in_transit[owner][instance] = InTransit(sums.tokens + tokens, sums.requests + requests)
