"""The API surface of a replica: which path means what. Everything that can be relayed is; the rest is answered here."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from random import getrandbits
from typing import Final

import msgspec
from aiohttp import web

from bus.hop.headers import REQUEST_ID
from proxy.access_log import AccessLine, AccessLog
from proxy.errors import Problem, error_response, problem_of, response_of
from proxy.facts import BadRequest, Facts, read_facts
from proxy.metrics import ProxyMetrics
from proxy.multipart import model_of_multipart
from proxy.relay import Exchange, Relay
from proxy.selection import Selection, UnknownModel
from proxy.tokenizer import Tokenizers

log = logging.getLogger("forebay.proxy")

#: Paths of things that one instance made and only it knows.
_OWNED: Final = re.compile(
    r"/v1/(responses|files|batches|uploads|vector_stores|conversations|threads|fine_tuning)(/|$)"
)

#: Client ids that are passed on as they are; any other is replaced.
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

LocalPage = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Surface:
    """Handles every request of the API port. `local` are further pages by path: /health, /ready and the like."""

    def __init__(
        self,
        selection: Selection,
        relay: Relay,
        metrics: ProxyMetrics,
        access_log: AccessLog,
        tokenizers: Tokenizers,
        local: dict[str, LocalPage],
    ) -> None:
        self._selection = selection
        self._relay = relay
        self._metrics = metrics
        self._access_log = access_log
        self._tokenizers = tokenizers
        self._local = local

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever way it ends, one line says so."""
        path = request.path
        page = self._local.get(path)
        if page is not None:
            return await page(request)
        given_id = request.headers.get(REQUEST_ID, "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"{getrandbits(128):032x}"
        line = AccessLine(at=time.time(), request_id=request_id, method=request.method, path=path, outcome="cancelled")
        started_s = time.monotonic()
        try:
            response = await self._answer(Exchange(request, request_id, line), path)
        except asyncio.CancelledError:
            line.outcome, line.status = "cancelled", 499
            self._end(line, started_s)
            raise
        except Exception as fault:
            problem = problem_of(fault)
            if problem is None:
                log.exception("request %s: a fault of the gateway itself", request_id)
                problem = Problem(500, "internal_error", "internal_error")
            line.outcome = "rejected" if problem.status < 500 else "failed"
            response = response_of(fault, problem)
        if not response.prepared:
            response.headers[REQUEST_ID] = request_id
        line.status = response.status
        self._end(line, started_s)
        return response

    def _end(self, line: AccessLine, started_s: float) -> None:
        line.total_ms = round((time.monotonic() - started_s) * 1000, 1)
        self._metrics.count(line.status)
        self._access_log.write(line)

    async def _answer(self, exchange: Exchange, path: str) -> web.StreamResponse:
        request, line = exchange.request, exchange.line
        if request.headers.get("upgrade", "").lower() == "websocket":
            line.outcome = "rejected"
            return error_response(501, "WebSocket is not relayed", code="not_implemented")
        if not path.startswith("/v1/"):
            line.outcome = "rejected"
            return error_response(404, f"no such path: {path[:200]}", code="not_found")
        if path == "/v1/models" and request.method == "GET":
            await self._refresh()
            line.outcome = "answered"
            return _json({"object": "list", "data": [_model(name) for name in self._selection.models()]})
        if path.startswith("/v1/models/") and request.method == "GET":
            await self._refresh()
            return self._one_model(path.removeprefix("/v1/models/"), line)
        if self._needs_its_maker(request.method, path):
            line.outcome = "rejected"
            return error_response(
                501,
                "what one instance made cannot be found among several",
                kind="not_implemented",
                code="not_implemented",
            )
        if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.read()
        facts = await _facts(request, path, body)
        if facts.exact_tokens is None:
            exact_tokens = await self._tokenizers.count(facts.model, body)
            if exact_tokens is not None:
                facts = msgspec.structs.replace(facts, exact_tokens=exact_tokens)
        if facts.model is None and request.method == "POST":
            facts = msgspec.structs.replace(facts, model=self._only_model())
        line.model = facts.model
        return await self._relay.relay(exchange, facts, body)

    async def _refresh(self) -> None:
        """Look at the bus, so that the models are those of now."""
        for reader in self._selection.readers.values():
            await reader.view()

    def _one_model(self, name: str, line: AccessLine) -> web.Response:
        if name not in self._selection.models():
            raise UnknownModel(name)
        line.outcome = "answered"
        return _json(_model(name))

    def _needs_its_maker(self, method: str, path: str) -> bool:
        """Whether only the instance that made something can answer, and there are several."""
        owned = _OWNED.match(path)
        makes_a_response = method == "POST" and path.rstrip("/") == "/v1/responses"
        if owned is None or makes_a_response:
            return False
        return self._selection.live_instances() != 1

    def _only_model(self) -> str:
        """The model that is meant when none is named: the only one there is. Raises BadRequest."""
        models = self._selection.models()
        if len(models) == 1:
            return models[0]
        raise BadRequest("model is required: this gateway serves " + (", ".join(models[:20]) or "none now"), "model")


async def _facts(request: web.BaseRequest, path: str, body: bytes) -> Facts:
    """What the body says; a request without one asks for nothing in particular. Raises BadRequest."""
    if request.method != "POST":
        return Facts()
    if request.content_type.startswith("multipart/"):
        try:
            model = await model_of_multipart(request.headers["content-type"], body)
        except ValueError as fault:
            raise BadRequest(f"the body is not multipart: {fault}") from fault
        return Facts(model=model, is_text_only=False)
    return read_facts(path, body)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "forebay"}


def _json(page: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(page), content_type="application/json")
