"""The answers of `GET /debug/instance_loads` as structs: what `forebay top` and the cluster's view read.

Fields that are not known here are ignored, and absent ones are unknown, so that replicas of other versions can be read.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

UNKNOWN: Final = "–"
"""How an unknown value is shown; never as 0."""


class Signal(msgspec.Struct, frozen=True):
    """One number of one instance; None is unknown."""

    value: float | None = None
    """What the instance's own record says."""
    used: float | None = None
    """What the choice is made with, where that is something else: imputed, or this replica's own count."""
    source: str | None = None
    age_ms: float | None = None
    weight: float | None = None
    contribution: float | None = None
    imputed_from: str | None = None


class InstanceLoad(msgspec.Struct, frozen=True):
    """One instance as the replica sees it."""

    pool: str
    id: str
    state: str = "unknown"
    models: tuple[str, ...] = ()
    worker_url: str | None = None
    age_ms: float | None = None
    reason: str | None = None
    is_ejected: bool = False
    """Out of rotation after failures of its own."""
    held_against: str | None = None
    """Why fewer requests go there than elsewhere, in words."""
    is_full: bool = False
    """Its worker would answer 429 now."""
    in_transit_tokens: int | None = None
    """Reserved there by all replicas, and in no record yet."""
    in_transit_requests: int | None = None
    unbelievable: tuple[str, ...] = ()
    """Signals whose numbers cannot be true."""
    signals: dict[str, Signal] = {}
    total: float | None = None
    selected: int = 0


class Bus(msgspec.Struct, frozen=True):
    """How fresh a pool's view of the bus is."""

    state: str = "blind"
    age_ms: float | None = None


class Pool(msgspec.Struct, frozen=True):
    """How a pool's choices are made at this moment."""

    tier: str | None = None
    """measured, in_flight or round_robin; None: there is nothing to choose from."""
    bus: Bus = Bus()


class Loads(msgspec.Struct, frozen=True):
    """The whole answer of `GET /debug/instance_loads`."""

    replica: str = UNKNOWN
    strategy: str = UNKNOWN
    pools: dict[str, Pool] = {}
    instances: tuple[InstanceLoad, ...] = ()


LoadsLike = Loads | Mapping[str, Any]
"""The answer decoded, or as the plain dictionary that JSON gives."""


def decode(body: bytes) -> Loads:
    """The answer's body as a struct; raises msgspec.MsgspecError if it is something else."""
    return msgspec.json.decode(body, type=Loads)
