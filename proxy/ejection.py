"""What a replica holds against instances, and how much it lets a new or returning one take. No I/O, no clock.

- An instance that failed is out: left alone for a pause, which doubles with each further failure. Requests avoid it as
  long as any other lives.
- Where its engine failed the end of the pause is enough, and the next real request is the probe: an engine's own health
  page says nothing (a hung vLLM answers it with 200). Where its worker failed, the worker's health is asked first.
- Who comes back, and who is new, may have one request of this replica under way, then two, four, … doubling with each
  success: so a half-healed instance costs one request, and a cold one is not flooded.
- That is no reason to let requests wait elsewhere: where nobody else has a free slot, who is new has no limit, and who
  comes back twice its own. A limit keeps what is not known to be well from being preferred, not work from being done.
- A stream that begins lets its instance back, and one that ends well forgets the pauses: who breaks every stream after
  its first event is out for longer each time.
- An instance whose engine named a time (Retry-After) is passed over for that long. That is no failure.

None of this ever refuses a request: if all are out all are tried, and a limit holds only while another has room.
"""

from collections.abc import Iterable
from typing import Final

#: First pause after a failure; each further one doubles it.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

#: Longest pause between two questions to a worker that does not answer: they cost no request.
LONGEST_BETWEEN_PROBES_S: Final = 2.0

#: Above so many under way a limit that doubled is none.
UNLIMITED: Final = 64

#: So long after it met the first instances a replica cannot tell who is new: it is itself, and a fleet starts as one.
NEW_HERE_S: Final = 10.0

#: An engine that wants to be left alone for longer is asked again.
LONGEST_REST_S: Final = 60.0


class Standing:
    """What is held against one instance. Requests under way belong to the standing under which they were sent."""

    __slots__ = ("is_new", "limit", "needs_health", "pause_s", "under_way", "until_s")

    def __init__(
        self,
        *,
        until_s: float = float("-inf"),
        pause_s: float = 0.0,
        needs_health: bool = False,
        is_new: bool = False,
    ) -> None:
        self.is_new = is_new
        """Nothing but that it is new is held against it."""
        self.until_s = until_s
        self.pause_s = pause_s
        """Length of the last pause; 0: none since the last success."""
        self.needs_health = needs_health
        """Out until its worker has answered."""
        self.limit = 1
        self.under_way = 0

    def __repr__(self) -> str:
        health = ", needs health" if self.needs_health else ""
        return f"<Standing out until {self.until_s:g}{health}, {self.under_way}/{self.limit} under way>"

    def is_out(self, now: float) -> bool:
        """Whether requests avoid the instance."""
        return self.needs_health or now < self.until_s

    def has_room(self, *, is_pressed: bool) -> bool:
        """Whether one more may be sent there; `is_pressed`: nobody else has a free slot."""
        if is_pressed and self.is_new:
            return True
        return self.under_way < (2 * self.limit if is_pressed else self.limit)

    def ended(self) -> None:
        """A request that was sent under this standing has ended."""
        self.under_way -= 1


class Ejections:
    """Standing of all instances; seconds on a monotonic clock.

    >>> ejections = Ejections()
    >>> ejections.failed("a", now=0.0)
    >>> ejections.usable(["a", "b"], now=0.1), ejections.usable(["a", "b"], now=0.6)
    (['b'], ['a', 'b'])
    """

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._rests: dict[str, float] = {}
        self._known: set[str] = set()
        self._met_first_s = float("-inf")

    # -- what happens

    def meet(self, instances: Iterable[str], now: float) -> None:
        """These are there; who was not before is new, save for a replica that is new itself and cannot tell."""
        fresh = set(instances) - self._known
        if not fresh:
            return
        self._met_first_s = self._met_first_s if self._known else now
        if now - self._met_first_s >= NEW_HERE_S:
            for instance in fresh:
                self._standings.setdefault(instance, Standing(is_new=True))
        self._known |= fresh

    def claim(self, instance: str) -> Standing | None:
        """A request is to go there: it counts as under way if something is held against the instance.

        What is returned is to be told that it `ended`: at the request's end, or where it does not go there after all.
        """
        standing = self._standings.get(instance)
        if standing is not None:
            standing.under_way += 1
        return standing

    def failed(self, instance: str, now: float, *, needs_health: bool = False) -> None:
        """A request failed there, or its worker did not answer; failures while it is out do not lengthen its pause."""
        was = self._standings.get(instance) or Standing()
        until_s, pause_s, needs_health = was.until_s, was.pause_s, was.needs_health or needs_health
        if not was.is_out(now):
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            until_s = now + pause_s
        self._standings[instance] = Standing(until_s=until_s, pause_s=pause_s, needs_health=needs_health)

    def succeeded(self, instance: str, sent_under: Standing | None, *, is_whole: bool = True) -> None:
        """The instance has answered a request; a stream that has only begun does not undo what failed before it.

        `sent_under` is what was held against the instance when the request was sent: an answer to one that was sent
        before the last failure says nothing of the time after it.
        """
        standing = self._standings.get(instance)
        if standing is None or standing is not sent_under:
            return
        standing.until_s, standing.needs_health = float("-inf"), False
        if is_whole:
            standing.pause_s = 0.0
        standing.limit = min(2 * standing.limit, 2 * UNLIMITED)
        if standing.limit > UNLIMITED and not standing.pause_s:
            del self._standings[instance]

    def probed(self, instance: str, is_alive: bool, now: float) -> None:
        """Its worker was asked: alive it is let back, to one request; else it is asked again after a longer pause."""
        standing = self._standings.get(instance)
        if standing is None or not standing.needs_health:
            return
        standing.needs_health = not is_alive
        if not is_alive:
            pause_s = min(2 * standing.pause_s, LONGEST_BETWEEN_PROBES_S)
            standing.until_s, standing.pause_s = now + pause_s, pause_s

    def rest(self, instance: str, seconds: float, now: float) -> None:
        """Its engine wants to be left alone for so long."""
        self._rests[instance] = max(self._rests.get(instance, 0.0), now + min(seconds, LONGEST_REST_S))

    def forget_all_but(self, instances: Iterable[str], now: float) -> None:
        """Drop what is held against instances that are gone, who are new when they return, and rests that are over."""
        left = set(instances)
        self._known &= left
        self._standings = {name: each for name, each in self._standings.items() if name in left}
        self._rests = {name: until_s for name, until_s in self._rests.items() if name in left and until_s > now}

    # -- what follows

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held against anybody, as it mostly is."""
        return not self._standings and not self._rests

    def is_out(self, instance: str, now: float) -> bool:
        """Whether the instance is to be left alone."""
        standing = self._standings.get(instance)
        return standing is not None and standing.is_out(now)

    def needs_health(self, instance: str) -> bool:
        """Whether the instance is out until its worker has answered."""
        standing = self._standings.get(instance)
        return standing is not None and standing.needs_health

    def held_against(self, instance: str, now: float) -> str | None:
        """Why fewer requests go there than elsewhere, in words for people; None: for no reason of ours."""
        standing, rest_s = self._standings.get(instance), self._rests.get(instance, 0.0) - now
        if standing is not None and standing.needs_health:
            return "out until its worker answers"
        if standing is not None and standing.is_out(now):
            return f"left alone for {standing.until_s - now:.1f} s more after a failure"
        if rest_s > 0:
            return f"left alone for {rest_s:.0f} s more, as its engine asked"
        if standing is not None:
            how = "new, let in slowly" if standing.is_new else "let back slowly"
            return f"{how}: {standing.under_way} of at most {standing.limit} under way while others have free slots"
        return None

    def due(self, now: float) -> list[str]:
        """Instances whose worker is to be asked whether it lives, so that they can be let back."""
        return [name for name, each in self._standings.items() if each.needs_health and now >= each.until_s]

    def usable(self, instances: Iterable[str], now: float) -> list[str]:
        """Those that are not out; all of them if all are, since trying beats refusing."""
        every = list(instances)
        return [name for name in every if not self.is_out(name, now)] or every if self._standings else every

    def with_room(self, instances: Iterable[str], now: float, *, is_pressed: bool = False) -> list[str]:
        """Of those the ones that neither rest nor have reached their limit; all of them if there is none.

        `is_pressed`: those that had room without it have no free slot.
        """
        every = list(instances)
        if self.is_empty:
            return every
        return [name for name in every if self._has_room(name, now, is_pressed=is_pressed)] or every

    def is_limited(self, instance: str, *, is_pressed: bool) -> bool:
        """Whether a limit holds there, so that a place must be taken before a request is offered to it."""
        standing = self._standings.get(instance)
        return standing is not None and not (is_pressed and standing.is_new)

    def _has_room(self, instance: str, now: float, *, is_pressed: bool) -> bool:
        standing = self._standings.get(instance)
        has_room = standing is None or standing.has_room(is_pressed=is_pressed)
        return has_room and now >= self._rests.get(instance, 0.0)
