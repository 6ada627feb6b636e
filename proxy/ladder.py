"""The ladder: how candidates of which different things are known are made comparable. No I/O, no clock.

For the whole candidate set:

1. a signal that nobody reports is left out for everybody;
2. an instance that lacks a signal others report takes, for this choice, the value of one reporting instance drawn at
   random, so that silence neither attracts nor shuts out; its own known signals stay;
3. nobody reports anything: this replica's own in-flight counts;
4. not even those: nothing to compare, so round robin.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from bus.record import DURATIONS
from bus.view import aged_ms
from proxy.candidates import Candidate, Evaluation, Slopes, Tier, of_terms

if TYPE_CHECKING:
    from bus.record import PressureRecord

_DURATIONS: Final = frozenset(DURATIONS)

Row = list[float]


class Resolved(msgspec.Struct, frozen=True):
    """Comparable values: one row a candidate, one column a signal of `signals`."""

    tier: Tier
    signals: tuple[str, ...]
    rows: list[Row]
    imputed: dict[int, dict[str, str]]
    """Candidate index → signal → instance whose value stands in."""


class Ladder:
    """Resolves one fixed list of signals for any set of candidates.

    `derived` says how a signal is read where the record's field of that name is not all there is to know.
    """

    def __init__(
        self, signals: Sequence[str], derived: "Mapping[str, Callable[[PressureRecord], float | None]] | None" = None
    ) -> None:
        self.signals = tuple(signals)
        self._derived = [(self.signals.index(name), read) for name, read in (derived or {}).items()]
        self._read = _reader(self.signals)
        self._aged = tuple(index for index, name in enumerate(self.signals) if name in _DURATIONS)

    def resolve(self, candidates: Sequence[Candidate], rng: Random) -> Resolved:
        """Climb down only as far as needed; `rng` draws the peers that stand in for what is unknown."""
        rows = [self._row(candidate) for candidate in candidates]
        if all(None not in row for row in rows):
            if self.signals:
                return Resolved("measured", self.signals, rows, {})  # type: ignore[arg-type] # no None in any row
            return _own_counts(candidates)
        columns = range(len(self.signals))
        reporting = {column: [i for i, row in enumerate(rows) if row[column] is not None] for column in columns}
        kept = [column for column in columns if reporting[column]]
        if not kept:
            return _own_counts(candidates)
        imputed: dict[int, dict[str, str]] = {}
        for index, row in enumerate(rows):
            missing = [column for column in kept if row[column] is None]
            if missing:
                donors = _donors(missing, reporting, rng)
                imputed[index] = {self.signals[column]: candidates[donor].instance for column, donor in donors.items()}
                for column, donor in donors.items():
                    row[column] = rows[donor][column]
        resolved: list[Row] = [[value for column in kept if (value := row[column]) is not None] for row in rows]
        return Resolved("measured", tuple(self.signals[column] for column in kept), resolved, imputed)

    def _row(self, candidate: Candidate) -> list[float | None]:
        """Signals of a candidate as they are known, durations aged."""
        pressure = candidate.pressure
        if pressure.record is None:
            return [None] * len(self.signals)
        row = self._read(pressure.record)
        for column, read in self._derived:
            row[column] = read(pressure.record)
        age_ms = pressure.age_ms
        if age_ms is not None:
            heartbeat_ms = pressure.registration.heartbeat_ms
            for column in self._aged:
                published_ms = row[column]
                if published_ms is not None:
                    row[column] = aged_ms(published_ms, age_ms=age_ms, heartbeat_ms=heartbeat_ms)
        return row


def _reader(signals: tuple[str, ...]) -> "Callable[[PressureRecord], list[float | None]]":
    """Read all signals of a record at once."""
    if len(signals) == 0:
        return lambda _: []
    if len(signals) == 1:
        read_one = attrgetter(signals[0])
        return lambda record: [read_one(record)]
    read_all = attrgetter(*signals)
    return lambda record: list(read_all(record))


def _donors(missing: list[int], reporting: dict[int, list[int]], rng: Random) -> dict[int, int]:
    """For each missing column the candidate that stands in: one for all of them if somebody reports all of them.

    Only what a candidate reported itself is given on: `reporting` was taken before any value was imputed.
    """
    complete = set(reporting[missing[0]]).intersection(*(reporting[column] for column in missing[1:]))
    if complete:
        donor = rng.choice(sorted(complete))
        return dict.fromkeys(missing, donor)
    return {column: rng.choice(reporting[column]) for column in missing}


def of_own_counts(strategy: str, instances: Sequence[str], resolved: Resolved) -> Evaluation:
    """Evaluation of candidates of which no record says anything: on what is left of the ladder."""
    weights = (1.0,) * len(resolved.signals)
    slopes = [Slopes(per_request=float(len(weights)))] * len(instances)
    return of_terms(strategy, resolved.tier, instances, resolved.signals, weights, resolved.rows, {}, slopes=slopes)


def _own_counts(candidates: Sequence[Candidate]) -> Resolved:
    """Rungs three and four."""
    counts = [candidate.own_inflight for candidate in candidates]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return Resolved("round_robin", (), [[] for _ in candidates], {})
    return Resolved("in_flight", ("inflight",), [[float(count)] for count in known], {})
