"""Whether an engine does its work: what becomes of requests says so, and after a failure a request of our own.

Engines answer their health pages while their work hangs, so only work tells. Without this each replica would find out
by requests of its clients, and again after every pause: the worker finds out once, its record says it to all, and
nobody's request is the probe that lets the engine back.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bus.hop.client import HopClient
from bus.hop.errors import HopFailed
from bus.hop.headers import RawHeaders
from bus.hop.sse import ends_well, ends_with_error, first_event
from bus.seldom import Seldom
from workers.gate import Gate
from workers.verdicts import meaning, meaning_of_event

log = logging.getLogger("forebay.worker")

#: Failures without an answer between them that say so: one may be the fault of its request. A stream that has begun and
#: breaks is no request's fault, and counts as all of them; one that falls silent counts as one, since an engine that
#: reads tool calls says nothing before it has the whole of one.
FAILURES: Final = 2

#: Time from a failure to the first request of our own, s; each that fails doubles it.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

#: Longest time of a request of our own, s, where a client's may take longer: it is small and has a place of its own.
WORK_S: Final = 10.0

#: Tokens asked for: enough to see a stream that breaks after some.
_TOKENS: Final = 8
_PAGE_BYTES: Final = 64 * 1024

#: Statuses that are an answer of an engine that works: it is busy, wants another key than ours, has no completions.
_ANSWERS: Final = frozenset({400, 401, 403, 404, 405, 422, 429, 501})


class EngineHealth:
    """What is known, and the asking; `on_change` is called when it changes, `models` names what can be asked for."""

    def __init__(
        self,
        engine: HopClient,
        *,
        name: str,
        headers: RawHeaders,
        slots: Gate,
        limit_s: float,
        models: Callable[[], Sequence[str]],
        on_change: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._name = name
        self._headers = [*headers, (b"content-type", b"application/json")]
        self._slots = slots
        self._limit_s = min(limit_s, WORK_S)
        self._models = models
        self._on_change = on_change
        self._clock = clock
        self._failures = 0
        """Failures since the last answer; those of our own requests too."""
        self._failed_at_s = float("-inf")
        self._has_failed = asyncio.Event()
        self._said = Seldom()
        self._is_said = False

    @property
    def is_failing(self) -> bool:
        """Whether others are to be preferred."""
        return self._failures >= FAILURES

    def saw(self, outcome: str, *, sent_s: float, has_begun: bool = False) -> None:
        """A request has ended that was sent at `sent_s`: "answered", "failed" and "silent" say something of the engine.

        An answer to one that was sent before the last failure says nothing of the time after it. `has_begun`: it was a
        stream, and had had its first event.
        """
        if outcome == "failed":
            self._failed(FAILURES if has_begun else 1)
        elif outcome == "silent":
            self._failed(1)
        elif outcome == "answered" and sent_s >= self._failed_at_s:
            self._works_again()

    async def run(self) -> None:
        """After a failure ask the engine until it answers, us or anybody; until cancelled."""
        while True:
            await self._has_failed.wait()
            pause_s = FIRST_PAUSE_S
            while self._failures:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if self._failures:
                    await self._ask()

    def _failed(self, count: int) -> None:
        was_failing = self.is_failing
        self._failed_at_s = self._clock()
        self._failures += count
        self._has_failed.set()
        if self.is_failing and not was_failing:
            times = self._said.due(self._failed_at_s)
            self._is_said = times > 0
            if times:
                message = "instance %s: its engine fails; others are preferred until it answers (%d since last said)"
                log.warning(message, self._name, times)
            self._on_change()

    def _works_again(self) -> None:
        was_failing, self._failures = self.is_failing, 0
        self._has_failed.clear()
        if was_failing:
            level = logging.INFO if self._is_said else logging.DEBUG
            log.log(level, "instance %s: its engine answers again", self._name)
            self._on_change()

    async def _ask(self) -> None:
        """Send a small request, in a place of the engine like any other: it must not queue there."""
        await self._slots.enter("high")
        try:
            sent_s = self._clock()
            self.saw(await self._outcome(), sent_s=sent_s)
        finally:
            self._slots.leave()

    async def _outcome(self) -> str:
        """What becomes of it, in the words for any request."""
        request = {"prompt": "Hello", "max_tokens": _TOKENS, "stream": True}
        for model in self._models()[:1]:
            request["model"] = model
        try:
            async with asyncio.timeout(self._limit_s):
                answer = await self._engine.exchange(
                    "POST", "/v1/completions", self._headers, msgspec.json.encode(request), head_timeout_s=self._limit_s
                )
                body = await answer.body(_PAGE_BYTES)
        except (HopFailed, TimeoutError):
            return "failed"
        if answer.status != 200:
            return _outcome_of(meaning(answer.status, body))
        if ends_well(body) and not ends_with_error(body):
            return "answered"
        return _outcome_of(meaning_of_event(first_event(body)) or 500)


def _outcome_of(status: int) -> str:
    return "answered" if status in _ANSWERS else "declined" if status == 503 else "failed"
