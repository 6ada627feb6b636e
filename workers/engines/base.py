"""What an engine adapter is, and how gauges are read from a Prometheus page. No I/O."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec

from bus.record import LARGEST

#: Where Prometheus looks, and most engines tell their load.
METRICS: Final = "/metrics"


class EngineLoad(msgspec.Struct, frozen=True):
    """Load that an engine reports of itself; None: it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0..1; of several ranks the fullest."""
    kv_capacity_tokens: int | None = None
    """Tokens that the KV cache holds, all ranks together."""
    prefix_cache_hits: float | None = None
    """Prompt tokens that its prefix cache held, counted since its start."""


class EngineAdapter(Protocol):
    """One kind of engine: how to know it and how to read its load."""

    kind: str
    owner: str
    """What its /v1/models names as `owned_by`, if that tells it: it is known by it where its metrics cannot be read."""
    pages: tuple[str, ...]
    """Where its load may stand, the best first; the next one is asked where one does not exist (404)."""
    signals: tuple[str, ...]
    """Fields of EngineLoad that it says; one that is missing is worth a line in the log."""

    tells_usage: bool
    """Whether its streams tell their tokens unasked: then it is not asked, and what else it says at the end stays."""

    def speaks(self, page: bytes) -> bool:
        """Whether this metrics page is of this kind of engine."""

    def read_load(self, page: bytes) -> EngineLoad:
        """Load in one of its pages; what is not there, or is no number, is None."""


_SAMPLE: Final = re.compile(rb"(?:\{([^\n]*)\})?[ \t]+(\S+)")


class Gauge:
    """One gauge under one or several names: engines rename their metrics, and the old name must still be read.

    Where `rank` names a label, of several samples of one rank only the largest counts: the parts of a rank tell the
    same. Work is done only where a name stands in the page, however long that is: the search between is done in C.
    """

    def __init__(self, *names: str, rank: str = "") -> None:
        self._names = [name.encode() for name in names]
        self._rank = re.compile(rb'(?:^|,)%b="([^"]*)"' % rank.encode()) if rank else None

    def values(self, page: bytes) -> list[float]:
        """One sample for each rank; nothing if one of them is no finite number of at least 0.

        A rank that does not say its number is not idle: the others alone would be too little.

        >>> Gauge("a:run").values(b'# TYPE a:run gauge\\na:run{engine="0"} 2.0\\na:run{engine="1"} 3.0\\n')
        [2.0, 3.0]
        >>> Gauge("a:run").values(b'a:run{engine="0"} 2.0\\na:run{engine="1"} NaN\\n')
        []
        >>> Gauge("a:run", rank="dp").values(b'a:run{dp="0",tp="0"} 2\\na:run{dp="0",tp="1"} 2\\na:run{dp="1"} 3\\n')
        [2.0, 3.0]
        """
        ranks: dict[object, float] = {}
        for labels, raw in self.samples(page):
            value = number(raw)
            if value is None:
                return []
            rank = self._rank_of(labels) if self._rank else len(ranks)
            ranks[rank] = max(value, ranks.get(rank, 0.0))
        return list(ranks.values())

    def samples(self, page: bytes) -> list[tuple[bytes, bytes]]:
        """Labels and value of each sample, as they stand there, under the first of the names that has any."""
        return next((found for name in self._names if (found := list(_samples(page, name)))), [])

    def _rank_of(self, labels: bytes) -> bytes:
        found = self._rank.search(labels) if self._rank else None
        return found[1] if found else b""


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = page.find(name)
    while at >= 0:
        end = at + len(name)
        sample = _SAMPLE.match(page, end) if at == 0 or page[at - 1] == ord("\n") else None
        if sample is not None:
            yield sample[1] or b"", sample[2]
        at = page.find(name, end)


def total(values: Iterable[float]) -> int | None:
    """Sum over data-parallel ranks, as a count; None of nothing, and of what no record can hold."""
    found = list(values)
    return round(sum(found)) if found and sum(found) <= LARGEST else None


def fullest(values: Iterable[float]) -> float | None:
    """Largest share over data-parallel ranks: the fullest rank decides. None of nothing, or above 1."""
    largest = max(values, default=None)
    return largest if largest is not None and largest <= 1 else None


def number(raw: bytes | object) -> float | None:
    """A finite number of at least 0, from a Prometheus page or from JSON, where True is none.

    >>> number(b"2.5"), number(3), number(True), number(b"NaN"), number(-1), number(None)
    (2.5, 3.0, None, None, None, None)
    """
    if isinstance(raw, bool) or not isinstance(raw, (bytes, int, float)):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value >= 0 else None
