"""One run: a fleet, its replicas, a policy and the arrivals, played in virtual time; and what came of every request."""

from collections.abc import Sequence

import msgspec

from bus.registration import Registration
from deploy.engine.batching import EngineModel
from tests.routing.load import Arrival
from tests.routing.loop import Loop
from tests.routing.policies import MODES
from tests.routing.replicas import Mode, Replicas
from tests.routing.rivals import AllKnowing, FewestInFlight, Policy, RoundRobin
from tests.routing.site import Job, Site, Worker
from tests.routing.store import Reservation, Store


class Run(msgspec.Struct, frozen=True):
    """Every request of one run, in order of arrival, and what workers had predicted."""

    jobs: Sequence[Job]
    speeds: Sequence[float]
    predictions: Sequence[tuple[Job, float]]


class _Fleet:
    """The engines and who decides; counts what has not ended."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self.loop = Loop()
        self.left = 0
        self.sites = [Site(self.loop, index, EngineModel(speed=speed), self) for index, speed in enumerate(speeds)]
        self.policy: Policy | None = None

    def ended(self, job: Job) -> None:
        """Tell the policy, and count what is left."""
        self.left -= 1
        assert self.policy is not None
        self.policy.ended(job)

    def deliver(self, job: Job, index: int, reservation: Reservation | None) -> None:
        """A request reaches the worker that was chosen for it."""
        self.sites[index].accept(job, reservation)


class Spell(msgspec.Struct, frozen=True):
    """An engine has another speed for a while, seconds."""

    site: int
    speed: float
    begin_s: float
    end_s: float


def play(
    arrivals: Sequence[Arrival],
    speeds: Sequence[float],
    policy: str | Mode,
    *,
    replicas: int,
    seed: int = 0,
    spell: Spell | None = None,
) -> Run:
    """Play all arrivals to their end."""
    fleet = _Fleet(speeds)
    loop = fleet.loop
    mode = MODES.get(policy) if isinstance(policy, str) else policy
    if mode is not None:
        fleet.policy = _replicas(fleet, mode, replicas, seed)
    else:
        mean = sum(arrival.output_tokens for arrival in arrivals) / len(arrivals)
        fleet.policy = _rival(fleet, str(policy), replicas, mean)
    jobs = [Job(i, a.at_s, a.prompt_tokens, a.output_tokens, a.replica) for i, a in enumerate(arrivals)]
    fleet.left = len(jobs)
    if spell is not None:
        loop.at(spell.begin_s, _set_speed, fleet.sites[spell.site], spell.speed)
        loop.at(spell.end_s, _set_speed, fleet.sites[spell.site], speeds[spell.site])
    for job in jobs:
        loop.at(job.at_s, fleet.policy.arrived, job)
    loop.run(lambda: not fleet.left)
    predictions = [found for site in fleet.sites if site.worker for found in site.worker.predictions]
    return Run(jobs, speeds, predictions)


def _set_speed(site: Site, speed: float) -> None:
    site.engine.model = msgspec.structs.replace(site.engine.model, speed=speed)


def _replicas(fleet: _Fleet, mode: Mode, replicas: int, seed: int) -> Replicas:
    """The project's own replicas, with a worker that publishes at every site."""
    registrations = [
        Registration(worker_url=f"http://{site.index}", engine_url="", slots=site.engine.model.max_num_seqs)
        for site in fleet.sites
    ]
    store = Store(fleet.loop, registrations, replicas if mode.sharing == "own" else 1)
    for site, registration in zip(fleet.sites, registrations, strict=True):
        site.worker = Worker(fleet.loop, site, store, registration)
    return Replicas(fleet.loop, store, mode, replicas=replicas, seed=seed, deliver=fleet.deliver)


def _rival(fleet: _Fleet, name: str, replicas: int, mean_output_tokens: float) -> Policy:
    loop, sites = fleet.loop, fleet.sites
    if name == "round_robin":
        return RoundRobin(loop, sites, replicas=replicas)
    if name.startswith("fewest-"):
        return FewestInFlight(loop, sites, replicas=replicas, is_all_seeing=name == "fewest-all-seeing")
    if name == "all-knowing":
        return AllKnowing(loop, sites, mean_output_tokens=mean_output_tokens)
    raise KeyError(name)
