"""What an engine adapter is, and how gauges are read from a Prometheus page. No I/O."""

import math
import re
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from bus.record import LARGEST


class EngineLoad(msgspec.Struct, frozen=True):
    """Load that an engine reports of itself; None: it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0..1; of several ranks the fullest."""
    kv_capacity_tokens: int | None = None
    """Tokens that the KV cache holds, all ranks together."""


class EngineAdapter(Protocol):
    """One kind of engine: how to know it and how to read its load."""

    kind: str

    def speaks(self, page: bytes) -> bool:
        """Whether this metrics page is of this kind of engine."""

    def read_load(self, page: bytes) -> EngineLoad:
        """Load in a metrics page; what is not there, or is no number, is None."""


_SAMPLE: Final = rb"(?:\{[^\n]*\})?[ \t]+(\S+)"


class Gauge:
    """One gauge under one or several names: engines rename their metrics, and the old name must still be read."""

    def __init__(self, *names: str) -> None:
        either = b"|".join(re.escape(name.encode()) for name in names)
        self._pattern = re.compile(rb"^(?:" + either + rb")" + _SAMPLE, re.MULTILINE)

    def values(self, page: bytes) -> list[float]:
        """All samples of the gauge, one for each label set; nothing if one of them is no finite number of at least 0.

        A rank that does not say its number is not idle: the others alone would be too little.

        >>> Gauge("a:run").values(b'# TYPE a:run gauge\\na:run{engine="0"} 2.0\\na:run{engine="1"} 3.0\\n')
        [2.0, 3.0]
        >>> Gauge("a:run").values(b'a:run{engine="0"} 2.0\\na:run{engine="1"} NaN\\n')
        []
        """
        samples = [_number(raw) for raw in self._pattern.findall(page)]
        known = [sample for sample in samples if sample is not None]
        return known if len(known) == len(samples) else []


def total(values: Iterable[float]) -> int | None:
    """Sum over data-parallel ranks, as a count; None of nothing, and of what no record can hold."""
    found = list(values)
    return round(sum(found)) if found and sum(found) <= LARGEST else None


def fullest(values: Iterable[float]) -> float | None:
    """Largest share over data-parallel ranks: the fullest rank decides. None of nothing, or above 1."""
    largest = max(values, default=None)
    return largest if largest is not None and largest <= 1 else None


def _number(raw: bytes) -> float | None:
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
