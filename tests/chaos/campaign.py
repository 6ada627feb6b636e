"""A campaign: the load runs all the time, faults come one after the other or at random, each gets its span.

Owns the order of things and the waiting. What a request deserves is in the ledger, how a fault is made in faults/.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from deploy.engine.batching import EngineModel
from tests.chaos.faults import FAULTS
from tests.chaos.faults.base import Blow, Fault, Skipped
from tests.chaos.ledger import Ledger, Span
from tests.chaos.load import Load, rate_per_s
from tests.chaos.report import Report, report
from tests.chaos.stand import Stand, mounted, unmount

#: Share of the fleet's capacity that the load takes: three of four engines carry it too.
LOAD: Final = 0.45

#: Quiet before the first fault, in which it is seen what normal is.
QUIET_S: Final = 10.0

#: After each fault, time that counts as quiet again.
BREATH_S: Final = 0.5

#: A fault whose effects are still seen by then has not been recovered from.
SETTLE_LIMIT_S: Final = 20.0

#: Log folder's own file system, kB: room for an hour, and small enough to be filled.
LOGS_KB: Final = 65_536

Say = Callable[[str], None]


class Campaign:
    """The stand under load, and what has been done to it."""

    def __init__(self, stand: Stand, load: Load, *, seed: int, say: Say) -> None:
        self.stand = stand
        self.load = load
        self.ledger = load.ledger
        self.seed = seed
        self.skipped: dict[str, str] = {}
        self.left: dict[str, float] = {}
        """What was still under way anywhere after the last request had ended."""
        self._rng = random.Random(f"faults {seed}")
        self._say = say
        self._turn = 0
        self._spared: frozenset[str] = frozenset()

    def report(self, command: str) -> Report:
        """Account for everything; `command` is what it is printed under."""
        return report(
            self.ledger, seed=self.seed, command=command, skipped=self.skipped, left=self.left, lag_s=self.load.lag_s
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def one_by_one(self, faults: Sequence[Fault], times: int) -> None:
        """Each fault so many times, in an order of the seed's; everything is as before between any two."""
        order = [fault for fault in faults for _ in range(times)]
        self._rng.shuffle(order)
        for number, fault in enumerate(order, 1):
            span = await self._strike(fault, self._victim(fault))
            if span is not None:
                await self._settle(span)
                recovery_s = self.ledger.recovery_s(span.began_s)
                shown = "not recovered" if recovery_s is None else f"recovered after {recovery_s:.1f} s"
                self._say(f"{number}/{len(order)} {fault.name}: {span.in_flight} in flight, {shown} {span.note}")
            await asyncio.sleep(BREATH_S)

    async def at_random(self, faults: Sequence[Fault], *, for_s: float, every_s: float) -> None:
        """Draw faults for a while, whether or not the last one has been got over."""
        until_s = self._now() + for_s
        while self._now() < until_s:
            began_s = self._now()
            fault = self._rng.choice(faults)
            victim = self._victim(fault)
            span = await self._strike(fault, victim)
            if span is not None:
                self._say(
                    f"{span.began_s - (until_s - for_s):.0f} s: {fault.name} on {victim}, {span.in_flight} in flight"
                )
            left_s = every_s - (self._now() - began_s)
            await asyncio.sleep(max(0.0, left_s * self._rng.uniform(0.8, 1.2)))
            if span is not None:
                span.settled_s = self._now()

    def spare(self, names: Sequence[str]) -> None:
        """Start the processes of these seats anew no more: what they hold shall be seen to stay."""
        self._spared = frozenset(names)

    def _victim(self, fault: Fault) -> str:
        """Whoever's turn it is: so every part is hit, and none twice in a row."""
        self._turn += 1
        names = list(self.stand.replicas if fault.hits == "replica" else self.stand.engine_names)
        if fault.is_restart:
            names = [name for name in names if name not in self._spared]
        return names[self._turn % len(names)]

    async def _strike(self, fault: Fault, victim: str) -> Span | None:
        """Make a fault, hold it, undo it."""
        replica = self.stand.replica_url(victim) if fault.hits == "replica" else ""
        in_flight = len(self.ledger.running())
        span = Span(fault.name, fault.deserts, self._now(), replica=replica, in_flight=in_flight)
        self.ledger.spans.append(span)
        try:
            async with fault.strike(Blow(self.stand, victim, self._rng)):
                await asyncio.sleep(fault.hold_s)
        except Skipped as reason:
            self.ledger.spans.remove(span)
            if fault.name not in self.skipped:
                self._say(f"SKIPPED {fault.name}: {reason}")
            self.skipped[fault.name] = str(reason)
            return None
        span.healed_s = self._now()
        span.note = "; ".join(self.stand.revive())
        return span

    async def _settle(self, span: Span) -> None:
        """Wait until what was hit has ended, the fleet is whole and a row of requests is unaffected again."""
        assert span.healed_s is not None
        healed_s = span.healed_s
        hit = [call for call in self.ledger.running() if call.sent_s <= healed_s]
        try:
            async with asyncio.timeout(SETTLE_LIMIT_S):
                await self.stand.whole(limit_s=SETTLE_LIMIT_S)
                # polled: the ledger is pure, and has no events to wait for
                while any(c.ending is None for c in hit) or self.ledger.recovery_s(healed_s) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except (TimeoutError, AssertionError) as fault:
            self.stand.revive()
            said = f"{fault}".strip().split("\n")[0][:200]
            span.note = "; ".join(filter(None, (span.note, f"not as before within {SETTLE_LIMIT_S:g} s", said)))
        span.settled_s = self._now()


@contextlib.asynccontextmanager
async def campaign(
    folder: Path,
    *,
    seed: int,
    say: Say,
    load: float = LOAD,
    engine: EngineModel | None = None,
    patience: float = 1.0,
    resting: Callable[[Stand], Awaitable[None]] | None = None,
) -> AsyncIterator[Campaign]:
    """Start everything, and the load; at the end stop the load, wait for what is under way, then for idleness.

    `resting` is called twice, while nothing is under way: before the load begins and after it has ended.
    """
    logs = folder / "logs"
    is_mounted = mounted(logs, LOGS_KB)
    try:
        async with Stand(logs, engine=engine, patience=patience) as stand:
            if resting is not None:
                await resting(stand)
            per_s = rate_per_s(load, [stand.engine_model] * len(stand.engine_names))
            say(f"seed {seed}, {per_s:.1f} requests/s, {load:.0%} of what {len(stand.engine_names)} engines can do")
            current = Load(Ledger(), lambda: stand.replica_urls, per_s=per_s, seed=seed)
            async with current.running():
                found = Campaign(stand, current, seed=seed, say=say)
                await asyncio.sleep(QUIET_S)
                yield found
            found.left = await asyncio.to_thread(what_is_left, stand)
            if resting is not None:
                await resting(stand)
    finally:
        if is_mounted:
            unmount(logs)


def what_is_left(stand: Stand) -> dict[str, float]:
    """Wait for idleness; the counts of requests under way that do not come down to 0."""
    try:
        stand.fleet.wait_until_idle()
    except AssertionError:
        return stand.fleet.counts()
    return {}


def chosen(names: Sequence[str], *, is_short: bool) -> list[Fault]:
    """The faults whose names contain one of these, or all; of the short form or not."""
    return [
        fault
        for fault in FAULTS.values()
        if (fault.is_short or not is_short) and (not names or any(name in fault.name for name in names))
    ]


def stop_in_order() -> None:
    """Let SIGTERM end the run as Ctrl-C does: every process is ended, every mount taken away."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
