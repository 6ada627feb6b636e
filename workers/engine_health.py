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
from bus.hop.sse import ends_well, ends_with_error

log = logging.getLogger("forebay.worker")

#: Time from a failure to the first request of our own, s; each that fails doubles it.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

#: Tokens asked for: enough to see a stream that breaks after some.
_TOKENS: Final = 8
_PAGE_BYTES: Final = 64 * 1024

#: Statuses that say something of the request, not of the engine: it has no completions, or no such model.
_ANSWERS: Final = frozenset({400, 404, 405, 422})


class EngineHealth:
    """What is known, and the asking; `on_change` is called when it changes, `models` names what can be asked for."""

    def __init__(
        self,
        engine: HopClient,
        *,
        name: str,
        headers: RawHeaders,
        limit_s: float,
        models: Callable[[], Sequence[str]],
        on_change: Callable[[], None],
    ) -> None:
        self.is_failing = False
        self._engine = engine
        self._name = name
        self._headers = [*headers, (b"content-type", b"application/json")]
        self._limit_s = limit_s
        self._models = models
        self._on_change = on_change
        self._has_failed = asyncio.Event()

    def saw(self, outcome: str) -> None:
        """A request has ended: "answered" and "failed" say something of the engine."""
        if outcome == "answered":
            self._is_now(False)
        elif outcome == "failed":
            self._is_now(True)

    async def run(self) -> None:
        """Ask a failing engine again and again, until cancelled."""
        while True:
            await self._has_failed.wait()
            pause_s = FIRST_PAUSE_S
            while self.is_failing:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if self.is_failing and await self._works():
                    self._is_now(False)

    def _is_now(self, is_failing: bool) -> None:
        if is_failing == self.is_failing:
            return
        self.is_failing = is_failing
        if is_failing:
            self._has_failed.set()
            log.warning("instance %s: its engine fails; others are preferred until it answers", self._name)
        else:
            self._has_failed.clear()
            log.info("instance %s: its engine answers again", self._name)
        self._on_change()

    async def _works(self) -> bool:
        """Whether the engine answers a small request whole."""
        request = {"prompt": "Hello", "max_tokens": _TOKENS, "stream": True}
        for model in self._models()[:1]:
            request["model"] = model
        try:
            answer = await self._engine.exchange(
                "POST", "/v1/completions", self._headers, msgspec.json.encode(request), head_timeout_s=self._limit_s
            )
            body = await answer.body(_PAGE_BYTES, silence_s=self._limit_s)
        except HopFailed:
            return False
        if answer.status != 200:
            return answer.status in _ANSWERS
        return ends_well(body) and not ends_with_error(body)
