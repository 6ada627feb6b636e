"""Policies that are the project's own: replicas that read the store, evaluate, and choose by reserving.

Each holds what proxy/selection.py holds of a replica: a strategy, a rotation, a source of chance.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal

import msgspec

from bus.reader import SAMPLE
from proxy.candidates import Candidate, Choice, RequestWork
from proxy.config import ProxyConfig
from proxy.rotation import Rotation
from proxy.strategies import STRATEGIES
from proxy.strategies.base import offers, rank
from tests.routing.loop import Loop
from tests.routing.site import Job
from tests.routing.store import Reservation, Snapshot, Store

#: From a replica's question to the bus to the moment at which the bus answers it, and from a choice to its delivery.
READ_DELAY_S: Final = 0.0005
RESERVE_DELAY_S: Final = 0.0005
DELIVERY_DELAY_S: Final = 0.001

Sharing = Literal["all", "own", "none"]
"""Whose reservations a replica counts: all replicas', its own, nobody's."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas use a strategy."""

    strategy: str
    sharing: Sharing = "all"
    snapshot_s: float = 0.0
    """Age up to which a view is used again; 0: read for each choice."""
    config: ProxyConfig = ProxyConfig()
    sample: int = SAMPLE
    """Largest pool that is read as a whole; of a larger one each reading draws so many instances."""
    token_noise: float = 0.0
    """Deviation of the natural logarithm of the estimated prompt length."""


class Replicas:
    """All replicas of a fleet; `deliver` takes a request to the instance chosen."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        mode: Mode,
        *,
        replicas: int,
        seed: int,
        deliver: Callable[[Job, int, Reservation | None], None],
    ) -> None:
        self._loop = loop
        self._store = store
        self._mode = mode
        self._strategy = STRATEGIES[mode.strategy](mode.config)
        self._rotations = [Rotation.of_replica(f"replica-{index}") for index in range(replicas)]
        self._rng = Random(seed)
        self._snapshots: list[Snapshot | None] = [None] * replicas
        self._deliver = deliver

    def arrived(self, job: Job) -> None:
        """A request has come to its replica: ask the bus."""
        self._loop.at(self._loop.now + READ_DELAY_S, self._evaluate, job)

    def ended(self, job: Job) -> None:
        """Nothing is counted here."""

    def _evaluate(self, job: Job) -> None:
        mode, now = self._mode, self._loop.now
        owner = job.replica if mode.sharing == "own" else 0
        snapshot = self._snapshots[job.replica]
        if snapshot is None or now - snapshot.read_s >= mode.snapshot_s:
            snapshot = self._snapshots[job.replica] = self._store.read(owner, self._drawn())
        pressures = self._store.pressures(snapshot, now, with_in_transit=mode.sharing != "none")
        candidates = [Candidate(pressure.instance, pressure, 0) for pressure in pressures]
        tokens = job.prompt_tokens
        if mode.token_noise:
            tokens = max(1, round(tokens * self._rng.lognormvariate(0.0, mode.token_noise)))
        evaluation = self._strategy.evaluate(candidates, RequestWork(prompt_tokens=tokens), self._rng)
        choice = Choice(evaluation, rank(evaluation, self._rotations[job.replica]))
        if evaluation.slopes is None or mode.sharing == "none":
            self._chosen(job, choice, None)
        else:
            self._loop.at(now + RESERVE_DELAY_S, self._reserve, job, choice, candidates, owner, tokens)

    def _reserve(self, job: Job, choice: Choice, candidates: list[Candidate], owner: int, tokens: int) -> None:
        reserved, reservation = self._store.reserve(owner, offers(choice, candidates), tokens)
        self._chosen(job, msgspec.structs.replace(choice, reserved=reserved), reservation)

    def _chosen(self, job: Job, choice: Choice, reservation: Reservation | None) -> None:
        self._rotations[job.replica].note(choice.instance)
        self._loop.at(
            self._loop.now + DELIVERY_DELAY_S, self._deliver, job, self._store.place(choice.instance), reservation
        )

    def _drawn(self) -> Sequence[int]:
        """Instances that a reading asks for, as bus/reader.py draws them."""
        whole, sample = range(len(self._store.names)), self._mode.sample
        return self._rng.sample(whole, sample) if len(whole) > sample else whole
