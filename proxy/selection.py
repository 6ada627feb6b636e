"""Selection: read the shared view, decide, remember why. The thin shell around the pure strategies.

Owns this replica's own in-flight counts, its ejections, and the decisions it made lately. Knows nothing of HTTP.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import Final

import msgspec

from bus.errors import ForebayError
from bus.in_transit import OLDEST_VIEW_US, InTransit, Reserved
from bus.reader import Reader
from bus.record import TYPICAL_PROMPT_TOKENS
from bus.registration import Registration
from bus.reservations import Reservations, new_reservation_id
from bus.tokens import TokenRates
from bus.view import PoolView, Pressure
from proxy.admission import FleetFull, has_free_slot, is_full, long_enough, retry_after_s
from proxy.candidates import Candidate, Choice, Evaluation, RequestWork
from proxy.ejection import Ejections, Standing
from proxy.facts import Facts
from proxy.rotation import Rotation
from proxy.strategies.base import Strategy, offers, rank
from proxy.unshown import Unshown

#: Decisions kept for /debug/selections.
DECISIONS_KEPT: Final = 256


class UnknownModel(ForebayError):
    """No instance of the pools has served this model lately."""


class NothingAlive(ForebayError):
    """The model is known, but no instance that serves it is alive, or none that has not been tried."""


class Decision(msgspec.Struct):
    """One choice as it is remembered."""

    request_id: str
    at: float
    """Wall clock, seconds since 1970; for people, never for arithmetic."""
    pool: str
    model: str | None
    work: RequestWork
    choice: Choice
    in_transit_seen: list[InTransit]
    """What was in transit to each candidate in this replica's view."""
    real_ttft_s: float | None = None
    """Time to first token as it came, once it has."""

    @property
    def predicted_ttft_s(self) -> float | None:
        """Time to first token that was predicted at the instance chosen; None: the strategy predicts none."""
        predicted = self.choice.evaluation.ttft_s
        return predicted[self.choice.index] if predicted else None


class Selected(msgspec.Struct, frozen=True):
    """Where a request goes, and what it asks for."""

    pool: str
    pressure: Pressure
    work: RequestWork
    reservation: str
    decision: Decision
    standing: Standing | None
    """What is held against the instance, where something is: it counts this request as under way."""

    @property
    def instance(self) -> str:
        """Id of the instance."""
        return self.pressure.instance


class _Takers(msgspec.Struct, frozen=True):
    """Instances that a request may go to now, and those of them where only so many more may be under way."""

    found: list[Pressure]
    limited: frozenset[str] = frozenset()


class Selection:
    """Chooses an instance for each request; one for each replica."""

    def __init__(
        self,
        readers: Sequence[Reader],
        reservations: Sequence[Reservations],
        strategy: Strategy,
        *,
        rotation: Rotation,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.readers = {reader.pool: reader for reader in readers}
        self.reservations = {each.pool: each for each in reservations}
        self.strategy = strategy
        self.inflight: Counter[str] = Counter()
        """Requests that this replica has sent to an instance and not seen end."""
        self.selected: Counter[str] = Counter()
        self.tiers: Counter[str] = Counter()
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.ejections = Ejections()
        self._unshown = {pool: Unshown() for pool in self.readers}
        self._rotation = rotation
        self._rng = rng or random.Random()
        self._clock = clock

    async def choose(self, request_id: str, facts: Facts, *, tried: Collection[str] = ()) -> Selected:
        """Choose an instance that serves the model and is not in `tried`. Raises UnknownModel, NothingAlive, FleetFull.

        The request counts in flight until `release` is called with what is returned, exactly once.
        """
        views = [await reader.view(facts.model) for reader in self.readers.values()]
        now = self._clock()
        full: FleetFull | None = None
        for view in views:
            for is_read in (True, False):  # of a large pool only a sample was read: if none of it will do, others may
                if full is not None and tried and not is_read:
                    break  # one of them is asked, not all: where the sample is full they are too
                found = _serving(view.live(now, is_read=is_read), facts.model, tried)
                try:
                    if found:
                        return await self._decide(request_id, view, found, facts, now)
                except FleetFull as fault:
                    full = min(full or fault, fault, key=lambda each: each.retry_after_s)
        if full is not None:
            raise full
        if not all(reader.reads for reader in self.readers.values()):
            raise NothingAlive("this replica has not read all of the bus yet")  # what nobody has seen is not unknown
        if tried or facts.model is None or any(view.has_lately_served(facts.model) for view in views):
            raise NothingAlive(f"no live instance serves {facts.model or 'this'}")
        raise UnknownModel(facts.model)

    def release(self, selected: Selected) -> None:
        """A request has ended at the instance that was chosen for it."""
        instance = selected.instance
        self._unshown[selected.pool].ended(selected.reservation)
        if selected.standing is not None:
            selected.standing.ended()
        self.inflight[instance] -= 1
        if self.inflight[instance] <= 0:
            del self.inflight[instance]

    def give_back(self, selected: Selected) -> None:
        """A request could not be delivered: what was reserved for it is not coming."""
        reservations = self.reservations.get(selected.pool)
        if reservations is not None:
            reservations.give_back(selected.instance, selected.reservation)

    def look_around(self) -> None:
        """Note who is new in the last views, and drop what is remembered of instances that are gone."""
        there = [name for reader in self.readers.values() for name in reader.last_view.registered_instances()]
        self._rotation.forget_all_but(there)
        now = self._clock()
        self.ejections.forget_all_but(there, now)
        self.ejections.meet(there, now)

    def models(self) -> list[str]:
        """Models that live instances serve, by the last views."""
        return sorted({model for registration in self._taking() for model in registration.models})

    def knows(self, model: str | None) -> bool:
        """Whether some instance has served a model lately, by the last views."""
        return model is not None and any(r.last_view.has_lately_served(model) for r in self.readers.values())

    def live_instances(self) -> int:
        """How many instances take requests, by the last views."""
        return len(self._taking())

    def _taking(self) -> list[Registration]:
        """Registrations of the instances that take requests."""
        registered = (r for reader in self.readers.values() for r in reader.last_view.registered())
        return [registration for registration in registered if registration.state == "ready"]

    def evaluate_now(self, view: PoolView) -> tuple[list[Pressure], Evaluation | None]:
        """All live instances of a view, and the scores that a typical request would see. Chooses nothing."""
        found = view.live(self._clock())
        if not found:
            return [], None
        work = RequestWork(prompt_tokens=TYPICAL_PROMPT_TOKENS)
        return found, self.strategy.evaluate(self._candidates(found), work, self._rng)

    async def _decide(
        self, request_id: str, view: PoolView, found: list[Pressure], facts: Facts, now: float
    ) -> Selected:
        work = request_work(facts, found)
        found = long_enough(found, work, is_exact=facts.exact_tokens is not None)
        takers = self._takers(found, now)
        choice, candidates = self._judge(takers, work, view)
        reservation = new_reservation_id()
        standing = self.ejections.claim(choice.instance)  # before the wait: others choose meanwhile
        try:
            reserved = await self._reserve(choice, candidates, reservation, work, view)
        finally:
            if standing is not None:
                standing.ended()
        if reserved is not None:
            choice = msgspec.structs.replace(choice, reserved=reserved)
        elif self._is_shared(view, choice):
            takers = self._takers(found, now)  # anew: others have been sent during the wait
            choice, _ = self._judge(takers, work, view)
            self._unshown[view.pool].note(reservation, choice.instance, work.prompt_tokens, self._clock())
        standing = self.ejections.claim(choice.instance)
        found = takers.found
        pressure = found[choice.index]
        self._rotation.note(pressure.instance)
        self.inflight[pressure.instance] += 1
        self.selected[pressure.instance] += 1
        self.tiers[choice.evaluation.tier] += 1
        seen = [InTransit(p.in_transit_tokens, p.in_transit_requests) for p in found]
        decision = Decision(request_id, time.time(), view.pool, facts.model, work, choice, seen)
        self.decisions.append(decision)
        return Selected(view.pool, pressure, work, reservation, decision, standing)

    def _judge(self, takers: _Takers, work: RequestWork, view: PoolView) -> tuple[Choice, list[Candidate]]:
        """The own choice, by the view that this replica has and what it has sent since."""
        candidates = self._candidates(self._unshown[view.pool].added_to(takers.found, read_at_s=view.read_at_s))
        evaluation = self.strategy.evaluate(candidates, work, self._rng)
        ranking = rank(evaluation, self._rotation)
        if takers.limited:  # a place there is claimed for the first choice alone: the bus would fill it again and again
            others = [index for index in ranking[1:] if evaluation.instances[index] not in takers.limited]
            ranking = [ranking[0], *others]
        return Choice(evaluation, ranking), candidates

    def _takers(self, found: list[Pressure], now: float) -> _Takers:
        """Of those that could answer the ones that a request may go to now. Raises FleetFull.

        Who is out is left out first: that the only ones alive are full is no reason to try the dead.
        """
        ejections = self.ejections
        ejections.meet((p.instance for p in found), now)
        found = [p for p in found if p.record is None or p.record.state != "failing"] or found
        inside = found if ejections.is_empty else _named(found, ejections.usable((p.instance for p in found), now))
        takers = [p for p in inside if not is_full(p)]
        if not takers:
            raise FleetFull(retry_after_s(inside))
        return _Takers(takers) if ejections.is_empty else self._within_limits(takers, now)

    def _within_limits(self, takers: list[Pressure], now: float) -> _Takers:
        """Those whose limit is not reached; limits are lifted where that would leave none with a free slot."""
        ejections, names = self.ejections, [p.instance for p in takers]
        with_room = _named(takers, ejections.with_room(names, now))
        is_pressed = not any(has_free_slot(p, self.inflight[p.instance]) for p in with_room)
        if is_pressed:
            with_room = _named(takers, ejections.with_room(names, now, is_pressed=True))
        limited = (p.instance for p in with_room if ejections.is_limited(p.instance, is_pressed=is_pressed))
        return _Takers(with_room, frozenset(limited))

    async def _reserve(
        self, choice: Choice, candidates: list[Candidate], reservation: str, work: RequestWork, view: PoolView
    ) -> Reserved | None:
        """Let the bus choose among the best with what all replicas have reserved by now; None: it does not."""
        if not self._is_shared(view, choice) or view.age_s(self._clock()) > OLDEST_VIEW_US / 1e6:
            return None
        return await self.reservations[view.pool].choose(
            offers(choice, candidates), reservation=reservation, tokens=work.prompt_tokens, view_us=view.server_us
        )

    def _is_shared(self, view: PoolView, choice: Choice) -> bool:
        """Whether what others send matters to this choice, and can be known."""
        return choice.evaluation.slopes is not None and view.pool in self.reservations

    def _candidates(self, found: list[Pressure]) -> list[Candidate]:
        return [Candidate(pressure.instance, pressure, self.inflight.get(pressure.instance, 0)) for pressure in found]


def request_work(facts: Facts, found: list[Pressure]) -> RequestWork:
    """What a request asks for; its tokens as those who serve its model have learned to count them."""
    tokens = facts.exact_tokens
    if tokens is None:
        tokens = _token_rates(found).tokens(facts.text)
    return RequestWork(
        prompt_tokens=max(1, tokens),
        text=facts.text if facts.exact_tokens is None and facts.is_text_only else None,
        sequences=facts.sequences,
        output_cap=facts.output_cap,
        is_stream=facts.is_stream,
    )


def _token_rates(found: list[Pressure]) -> TokenRates:
    """Median of the rates that instances have learned, class by class; the prior where nobody has."""
    prior = TokenRates()
    records = [pressure.record for pressure in found if pressure.record is not None]

    def rate(name: str, fallback: float) -> float:
        known = [value for record in records if (value := getattr(record, name)) is not None]
        return median(known) / 1000 if known else fallback

    return TokenRates(
        rate("tokens_per_kb_letters", prior.letters),
        rate("tokens_per_kb_symbols", prior.symbols),
        rate("tokens_per_kb_wide", prior.wide),
    )


def _named(found: list[Pressure], names: Collection[str]) -> list[Pressure]:
    """Those of these names."""
    wanted = set(names)
    return [p for p in found if p.instance in wanted]


def _serving(found: list[Pressure], model: str | None, tried: Collection[str]) -> list[Pressure]:
    """Of the live instances those that take requests for `model` (None: any) and have not been tried."""
    return [
        p
        for p in found
        if p.registration.state == "ready"
        and (p.record is None or p.record.state != "draining")
        and (model is None or model in p.registration.models)
        and p.instance not in tried
    ]
