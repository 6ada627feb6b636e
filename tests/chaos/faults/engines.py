"""Faults of engines: every row of the simulated engine's table, made while the engine is at work."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from deploy.engine.faults import FAULTS as KINDS
from deploy.engine.faults import Scope, Stage
from tests.chaos.faults.base import Blow, Fault
from tests.chaos.ledger import Deserts

#: Longer than recovery may take: it must come while the fault is there.
HOLD_S: Final = 4.0

#: Errors that are the request's own fault as far as a gateway can know: they pass, whoever invented them.
_PASSES: Final = {"detail_422": 422}

#: The engine itself ends a stream as if nothing were wrong: there is no connection to see break.
_ENGINES_OWN_END: Final = frozenset({"cut_mid_stream", "garbage_mid_stream"})

_SHORT: Final = frozenset(
    {"refuse", "hang_work", "close", "garbage_bytes", "error_500", "refused_in_stream", "stop_undrained"}
)

#: Stages at which nothing fails.
_ODD: Final = (Stage.CONTENT, Stage.ENDING, Stage.DEPARTURE)

#: Names of the short table's rows, the first that holds.
_KINDS: Final = {
    "engine refuses, resets, or answers garbage": {"refuse", "close", "garbage_bytes", "garbage_json"},
    "engine hangs before its first event": {"hang", "hang_work", "hang_after_headers"},
    "engine answers 422": {"detail_422"},
    "engine stops without a drain": {"stop_undrained"},
    "engine breaks in mid-stream": {kind for kind, fault in KINDS.items() if fault.stage is Stage.MIDSTREAM},
    "engine begins or ends oddly, checks nothing, or its pages fail": {
        kind for kind, fault in KINDS.items() if fault.stage in _ODD or fault.scope in (Scope.METRICS, Scope.PAGES)
    }
    | {"late_headers"},
}


def _kind(kind: str) -> str:
    """Row of the short table."""
    return next((name for name, kinds in _KINDS.items() if kind in kinds), "engine answers 401, 429, 500, 502 or 503")


def _deserts(kind: str) -> Deserts:
    """What may come of a fault of this kind."""
    is_breaking = KINDS[kind].stage in (Stage.MIDSTREAM, Stage.LISTENER)  # who refuses is gone, and what it ran too
    statuses = frozenset({_PASSES[kind]}) if kind in _PASSES else frozenset[int]()
    return Deserts(statuses, breaks_streams=is_breaking, untold=kind in _ENGINES_OWN_END)


def _striking(kind: str) -> Callable[[Blow], AbstractAsyncContextManager[None]]:
    """Switch a fault on, and off."""

    @contextlib.asynccontextmanager
    async def strike(blow: Blow) -> AsyncIterator[None]:
        engine = blow.stand.engine(blow.victim)
        # while connections are refused nobody can switch that off, so it ends by itself
        order = {"seconds": HOLD_S} if KINDS[kind].stage is Stage.LISTENER else {}
        await asyncio.to_thread(engine.fault, kind, **order)
        try:
            yield
        finally:
            await asyncio.to_thread(engine.heal)

    return strike


ENGINES: Final = tuple(
    Fault(
        name=f"engine: {kind}",
        kind=_kind(kind),
        strike=_striking(kind),
        hold_s=HOLD_S,
        deserts=_deserts(kind),
        is_short=kind in _SHORT,
    )
    for kind in KINDS
)
