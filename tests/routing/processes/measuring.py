"""A cell measured: its policies side by side, block by block, each block judged valid or repeated.

Each policy has engines and processes of its own, and all are sent the same requests at the same moments by one client:
a machine that is busy for a second is so for all of them.

What runs is in stand.py, what it means in figures.py.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec

from bus.hop.process import GC_THRESHOLDS
from tests.routing.load import FLEETS, Arrival, arrivals
from tests.routing.processes.figures import percentile
from tests.routing.processes.plan import Cell, Policy
from tests.routing.processes.replaying import Shot, replay
from tests.routing.processes.stand import Stand, cpus, machine_s, stand
from tests.routing.processes.wire import Bodies

#: A client later than this (p99) or engines that lost more of their time than this were starved: the run is void.
LAG_BOUND_S: Final = 0.025
SLIP_BOUND: Final = 0.001

#: How often a block with a void run is repeated at once, for all; after that it stands, and the rows say so.
REPEATS: Final = 2

#: Requests that are not over so long after the last was sent are given up: an overloaded fleet drains for minutes.
PATIENCE_S: Final = 60.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all cells."""

    seed: int = 0
    scale: float = 1.0
    """All times of the engines and of the trace are multiplied by it."""
    tokens_per_chunk: int = 16
    lanes: int = 7
    """Policies that are served at once: seven, of up to four replicas, use about a third of two CPUs."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One block of one policy."""

    policy: Policy
    block: int
    shots: list[Shot]
    """Those that count."""
    lag_p99_s: float
    slip: float
    """Share of the engines' time that the machine lost."""
    cpu: float
    """Share of all CPUs that this policy's engines and processes used, in [0, 1]."""
    client_cpu: float
    """Share of all CPUs that the client of all lanes used."""
    machine: float
    """Share of all CPUs that was used at all."""
    answered: tuple[int, ...]
    """Requests that each engine answered."""
    repeats: int = 0
    """Void runs that were thrown away before it."""

    @property
    def is_void(self) -> bool:
        """Whether the machine was too slow for its times to mean anything."""
        return self.lag_p99_s > LAG_BOUND_S or self.slip > SLIP_BOUND


def speeds_of(cell: Cell, setting: Setting) -> tuple[float, ...]:
    """Speeds of the engines in scaled time."""
    return tuple(speed / setting.scale for speed in FLEETS[cell.fleet])


def requests_of(cell: Cell, setting: Setting) -> list[Arrival]:
    """What comes to the fleet in scaled time, for all blocks."""
    return arrivals(
        cell.trace,
        seed=setting.seed,
        limit=cell.requests,
        load=cell.load / 100,
        speeds=speeds_of(cell, setting),
        replicas=1,
    )


async def measure(cell: Cell, setting: Setting, tell: Callable[[str], None]) -> list[Run]:
    """Run every policy on every block, so many at once as there are lanes."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    runs: list[Run] = []
    for at in range(0, len(cell.policies), setting.lanes):
        runs += await _wave(cell, setting, cell.policies[at : at + setting.lanes], tell)
    return runs


def summary(run: Run) -> str:
    """One line while it goes on."""
    p99_s = percentile([shot.ttft_s for shot in run.shots], 0.99)
    void = " VOID" if run.is_void else ""
    return (
        f"{run.policy.label:32} p99 TTFT {p99_s * 1000:6.0f} ms  lag p99 {run.lag_p99_s * 1000:3.0f} ms  "
        f"slip {run.slip:.2%}  CPU {run.cpu:.0%}{void}"
    )


async def _wave(cell: Cell, setting: Setting, policies: Sequence[Policy], tell: Callable[[str], None]) -> list[Run]:
    """Run some policies at the same time, each with engines of its own."""
    coming = requests_of(cell, setting)
    numbered = list(enumerate(coming))
    bodies = Bodies(setting.seed)
    size = cell.block_requests + cell.filling_requests
    runs: list[Run] = []
    with ExitStack() as stack:
        lanes = [
            _Lane(policy, _stand(stack, policy, cell, setting, coming), bodies, cell, setting) for policy in policies
        ]
        await asyncio.gather(*(lane.learn(numbered[: cell.learning_requests]) for lane in lanes))
        for block in range(cell.blocks):
            part = numbered[block * size : (block + 1) * size]
            done = await _valid_block(lanes, block, part, tell)
            for run in done:
                tell(summary(run))
            runs += done
    return runs


async def _valid_block(
    lanes: "Sequence[_Lane]", block: int, part: Sequence[tuple[int, Arrival]], tell: Callable[[str], None]
) -> list[Run]:
    """Run a block in all lanes, again if one of them was void."""
    for repeats in range(REPEATS + 1):
        busy_s, client_s, begin_s = machine_s(), time.process_time(), time.monotonic()
        done = await asyncio.gather(*(lane.run(block, part) for lane in lanes))
        share = 1 / (time.monotonic() - begin_s) / cpus()
        client, machine = (time.process_time() - client_s) * share, (machine_s() - busy_s) * share
        runs = [msgspec.structs.replace(run, client_cpu=client, machine=machine, repeats=repeats) for run in done]
        ours = client + sum(run.cpu for run in runs)
        tell(f"block {block + 1}: CPU {ours:.0%}, the client {client:.0%} of it; the machine {machine:.0%}")
        if not any(run.is_void for run in runs):
            break
    return runs


def _stand(stack: ExitStack, policy: Policy, cell: Cell, setting: Setting, coming: Sequence[Arrival]) -> Stand:
    return stack.enter_context(
        stand(
            policy,
            speeds_of(cell, setting),
            tokens_per_chunk=setting.tokens_per_chunk,
            mean_output_tokens=sum(arrival.output_tokens for arrival in coming) / len(coming),
        )
    )


class _Lane:
    """One policy and what serves it."""

    def __init__(self, policy: Policy, served: Stand, bodies: Bodies, cell: Cell, setting: Setting) -> None:
        self.policy = policy
        self._stand = served
        self._bodies = bodies
        self._filling = cell.filling_requests
        self._patience_s = PATIENCE_S * setting.scale

    async def learn(self, part: Sequence[tuple[int, Arrival]]) -> None:
        """Let the workers see their engines work."""
        if self.policy.is_forebay:
            await self._replay(part)

    async def run(self, block: int, part: Sequence[tuple[int, Arrival]]) -> Run:
        """Run a block once."""
        before = await asyncio.to_thread(self._stand.read)
        shots = (await self._replay(part))[self._filling :]
        after = await asyncio.to_thread(self._stand.read)
        wall_s = after.at_s - before.at_s
        return Run(
            policy=self.policy,
            block=block,
            shots=shots,
            lag_p99_s=percentile([shot.lag_s for shot in shots], 0.99),
            slip=(after.slip_s - before.slip_s) / wall_s / len(after.answered),
            cpu=(after.cpu_s - before.cpu_s) / wall_s / cpus(),
            client_cpu=0.0,
            machine=0.0,
            answered=tuple(now - then for now, then in zip(after.answered, before.answered, strict=True)),
        )

    async def _replay(self, part: Sequence[tuple[int, Arrival]]) -> list[Shot]:
        return await replay(part, self._stand.targets, self._bodies, patience_s=self._patience_s)
