"""Faults of the network between the parts, made by the links of the stand."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from tests.chaos.faults.base import Blow, Fault
from tests.chaos.ledger import Deserts
from tests.chaos.links import Link

_BREAKS: Final = Deserts(breaks_streams=True)

#: Between whom, and the name of that in the table.
PLACES: Final = {"to worker": "proxy → worker", "to engine": "worker → engine", "to bus": "all → Redis"}

#: A delay for each direction: enough that the bus misses every budget.
DELAY_S: Final = 0.1

BYTES_PER_S: Final = 20_000.0


def _delay(link: Link) -> None:
    link.delay_s = DELAY_S


def _throttle(link: Link) -> None:
    link.bytes_per_s = BYTES_PER_S


def _half_open(link: Link) -> None:
    link.lose("open")


def _partition(link: Link) -> None:
    link.lose("all")


def _striking(place: str, harm: Callable[[Link], None]) -> Callable[[Blow], AbstractAsyncContextManager[None]]:
    """Harm the links of a place: one instance's, or everybody's to the bus."""

    @contextlib.asynccontextmanager
    async def strike(blow: Blow) -> AsyncIterator[None]:
        links = blow.stand.links(place)
        hit = list(links.values()) if place == "to bus" else [links[blow.victim]]
        for link in hit:
            harm(link)
        try:
            yield
        finally:
            for link in hit:
                link.heal()

    return strike


_HARMS: Final = {
    "delay of 100 ms each way": (_delay, False),
    "20 kB/s": (_throttle, False),
    "connections reset": (Link.reset, True),
    "connections half-open": (_half_open, True),
    "cut off in silence": (_partition, True),
}

NETWORK: Final = tuple(
    Fault(
        name=f"{shown}: {what}",
        kind=f"network: {what}",
        strike=_striking(place, harm),
        deserts=_BREAKS if breaks and place != "to bus" else Deserts(),
        is_short=what == "connections half-open" or (place == "to bus" and harm is Link.reset),
    )
    for place, shown in PLACES.items()
    for what, (harm, breaks) in _HARMS.items()
)
