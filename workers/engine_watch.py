"""Watches one engine from outside: which kind it is, which models it serves, what load it reports.

A reading that fails makes the engine's signals unknown; it does not make the engine dead: only traffic tells that.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from bus.hop.client import HopClient
from bus.hop.errors import HopFailed
from bus.hop.headers import RawHeaders
from workers.engines import ADAPTERS, EngineAdapter, EngineLoad, recognise

log = logging.getLogger("forebay.worker")

#: Longest wait for one page: real engines under load took up to 0.6 s.
PAGE_TIMEOUT_S: Final = 2.0

#: Largest page that is read.
PAGE_BYTES: Final = 8 * 1024 * 1024

#: Models change rarely.
MODELS_EVERY_S: Final = 10.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode


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
        self.load = EngineLoad()
        self.adapter: EngineAdapter | None = None if kind == "auto" else ADAPTERS[kind]
        self.failures = 0
        self._engine = engine
        self._name = name
        self._headers = headers
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_load = on_load
        self._states: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        models_at_s = float("-inf")
        while True:
            if not self.models or loop.time() - models_at_s >= MODELS_EVERY_S:
                await self._read_models()
                models_at_s = loop.time()
            await self._read_load()
            self._on_load()
            await asyncio.sleep(self._interval_s)

    async def _read_models(self) -> None:
        body = await self._get("/v1/models")
        if body is None:
            return
        try:
            models = tuple(model.id for model in _decode_models(body).data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            self._note("/v1/models", "no list", f"/v1/models is not a list of models ({fault})")
            return
        if models != self.models:
            self.models = models
            log.info("instance %s: serves %s", self._name, ", ".join(models) or "no model")
            self._on_change()

    async def _read_load(self) -> None:
        page = await self._get("/metrics")
        if self.adapter is None and (page is not None or self.models):
            self.adapter = recognise(page)
            log.info("instance %s: engine recognised as %s", self._name, self.adapter.kind)
            self._on_change()
        if page is None or self.adapter is None:
            self.load = EngineLoad()
            return
        self.load = self.adapter.read_load(page)
        if self.load == EngineLoad() and self.adapter.kind != "openai":
            self._note("gauges", "none", f"/metrics has none of the gauges of {self.adapter.kind}: its load is unknown")
        else:
            self._note("gauges", "", "")

    async def _get(self, path: str) -> bytes | None:
        """Body of a page, None if it is not to be had."""
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                answer = await self._engine.exchange("GET", path, self._headers, b"", head_timeout_s=PAGE_TIMEOUT_S)
                body = await answer.body(PAGE_BYTES, silence_s=PAGE_TIMEOUT_S)
        except (HopFailed, TimeoutError) as fault:
            self.failures += 1
            self._note(path, "failed", f"{path} cannot be read ({fault or 'too slow'}): what it tells is unknown")
            return None
        if answer.status != 200:
            self._note(path, str(answer.status), f"{path} answers {answer.status}: what it tells is unknown")
            return None
        self._note(path, "", "")
        return body

    def _note(self, topic: str, state: str, message: str) -> None:
        """Say a change of state once; an empty state is a good one."""
        if state == self._states.get(topic, ""):
            return
        self._states[topic] = state
        if state:
            log.warning("instance %s: %s", self._name, message)
        else:
            log.info("instance %s: %s can be read again", self._name, topic)


def engine_headers(key_file: str) -> RawHeaders:
    """Headers that every request to an engine carries: its API key, if there is one. Raises OSError."""
    if not key_file:
        return []
    with open(key_file, encoding="utf-8") as lines:  # noqa: PTH123 - one line of one file
        key = lines.readline().strip()
    return [(b"authorization", b"Bearer " + key.encode())]
