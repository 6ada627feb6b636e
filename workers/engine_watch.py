"""Watches one engine from outside: which kind it is, which models it serves, what load it reports.

A reading that fails makes the engine's signals unknown; it does not make the engine dead: only traffic tells that.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from bus.hop.client import HopClient
from bus.hop.errors import HopFailed
from bus.hop.headers import RawHeaders
from workers.engines import ADAPTERS, METRICS, EngineAdapter, EngineLoad, recognise
from workers.models import ModelList, fitting, read_models

log = logging.getLogger("forebay.worker")

#: Longest wait for one page: real engines under load took up to 0.6 s.
PAGE_TIMEOUT_S: Final = 2.0

#: Largest page that is read.
PAGE_BYTES: Final = 8 * 1024 * 1024

#: Of its pages an engine is asked for no more than this: it makes a large one with much work, and so the larger a page
#: the more seldom it is read. vLLM's with one model has 55 kB.
PAGE_BYTES_PER_S: Final = 256 * 1024

#: Models change rarely.
MODELS_EVERY_S: Final = 10.0


class _Page(NamedTuple):
    """What a page answered: status 0 and no body where it cannot be read."""

    status: int
    body: bytes | None


class EngineWatch:
    """Knows kind, models and load of one engine as far as it tells them.

    `kind` is an adapter's name, or "auto". `on_change()` is called when models or kind have changed, `on_load()` after
    every reading.
    """

    def __init__(
        self,
        engine: HopClient,
        *,
        name: str,
        kind: str,
        headers: RawHeaders,
        interval_s: float,
        on_change: Callable[[], None],
        on_load: Callable[[], None],
    ) -> None:
        self.models: tuple[str, ...] = ()
        self.context_tokens: int | None = None
        """Most tokens of a prompt and its answer, where the engine tells."""
        self.load = EngineLoad()
        self.adapter: EngineAdapter | None = None if kind == "auto" else ADAPTERS[kind]
        self.failures = 0
        self._is_auto = kind == "auto"
        self._owner = ""
        self._next_page = 0
        self._engine = engine
        self._name = name
        self._headers = headers
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_load = on_load
        self._states: dict[str, str] = {}

    @property
    def tells_usage(self) -> bool:
        """Whether its streams tell their tokens unasked."""
        return self.adapter is not None and self.adapter.tells_usage

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        models_at_s = float("-inf")
        while True:
            if not self.models or loop.time() - models_at_s >= MODELS_EVERY_S:
                await self._read_models()
                models_at_s = loop.time()
            page_bytes = await self._read_load()
            self._on_load()
            await asyncio.sleep(pause_s(self._interval_s, page_bytes))

    async def _read_models(self) -> None:
        page = await self._get("/v1/models")
        if page.body is None:
            return
        try:
            listed = read_models(page.body)
        except ValueError as fault:
            self._note("/v1/models", "no list", f"/v1/models is {fault}")
            return
        self._owner = listed.owner
        self._take_models(listed)

    def _take_models(self, listed: ModelList) -> None:
        models = fitting(listed.names)
        left_out = len(listed.names) - len(models)
        self._note(
            "models", str(left_out or ""), f"{left_out} models are left out: a registration has no room for them"
        )
        if (models, listed.context_tokens) != (self.models, self.context_tokens):
            self.models, self.context_tokens = models, listed.context_tokens
            length = f" of at most {self.context_tokens} tokens" if self.context_tokens else ""
            log.info("instance %s: serves %s%s", self._name, ", ".join(models) or "no model", length)
            self._on_change()

    async def _read_load(self) -> int:
        """Read the load where it stands; the bytes of the page."""
        pages = self.adapter.pages if self.adapter else ()
        if not pages and not self._is_auto:
            return 0
        path = pages[self._next_page % len(pages)] if pages else METRICS
        page = await self._get(path, is_one_of_several=len(pages) > 1)
        if page.status == 404:
            self._next_page += 1
        if self._is_auto and path == METRICS:
            self._recognise(page.body)
        self.load = self.adapter.read_load(page.body) if self.adapter and page.body is not None else EngineLoad()
        self._say_what_is_missing(path, page)
        return len(page.body or b"")

    def _recognise(self, metrics: bytes | None) -> None:
        """Say which kind of engine this is; again whenever nobody known speaks: it may come late, or be replaced."""
        if metrics is None and not self.models:
            return
        if self.adapter is not None and (metrics is None or self.adapter.speaks(metrics)):
            return
        adapter = recognise(metrics, self._owner)
        if adapter is self.adapter or (self.adapter is not None and adapter.kind == "openai"):
            return
        self.adapter, self._next_page = adapter, 0
        known = "" if adapter.signals else ", of which no load is known"
        log.info("instance %s: engine recognised as %s%s", self._name, adapter.kind, known)
        self._on_change()

    def _say_what_is_missing(self, path: str, page: _Page) -> None:
        if self.adapter is None or page.body is None:
            return
        missing = [name for name in self.adapter.signals if getattr(self.load, name) is None]
        told = " and ".join(missing)
        self._note("gauges", told, f"{path} of this {self.adapter.kind} says nothing of {told}: unknown")

    async def _get(self, path: str, *, is_one_of_several: bool = False) -> _Page:
        """A page; that one of several does not exist is not worth a word."""
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                answer = await self._engine.exchange("GET", path, self._headers, b"", head_timeout_s=PAGE_TIMEOUT_S)
                body = await answer.body(PAGE_BYTES, silence_s=PAGE_TIMEOUT_S)
        except (HopFailed, TimeoutError) as fault:
            self.failures += 1
            self._note(path, "failed", f"{path} cannot be read ({str(fault) or 'too slow'}): what it tells is unknown")
            return _Page(0, None)
        if answer.status != 200:
            if not is_one_of_several or answer.status != 404:
                self._note(path, str(answer.status), f"{path} answers {answer.status}: what it tells is unknown")
            return _Page(answer.status, None)
        self._note(path, "", "")
        return _Page(200, body)

    def _note(self, topic: str, state: str, message: str) -> None:
        """Say a change of state once; an empty state is a good one."""
        if state == self._states.get(topic, ""):
            return
        self._states[topic] = state
        if state:
            log.warning("instance %s: %s", self._name, message)
        else:
            log.info("instance %s: %s can be read again", self._name, topic)


def pause_s(interval_s: float, page_bytes: int) -> float:
    """Time until a page is read again: the interval, and longer for a large page.

    >>> pause_s(0.5, 55_000), pause_s(0.5, 1024 * 1024)
    (0.5, 4.0)
    """
    return max(interval_s, page_bytes / PAGE_BYTES_PER_S)


def engine_headers(key_file: str) -> RawHeaders:
    """Headers that every request to an engine carries: its API key, if there is one. Raises OSError."""
    if not key_file:
        return []
    with open(key_file, encoding="utf-8") as lines:  # noqa: PTH123 - one line of one file
        key = lines.readline().strip()
    return [(b"authorization", b"Bearer " + key.encode())]
