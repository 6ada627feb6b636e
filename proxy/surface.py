"""The API surface of a replica: which path means what. Everything that can be relayed is; the rest is answered here."""

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from random import getrandbits
from typing import Final

import msgspec
from aiohttp import web

from bus.hop.admin import Page
from bus.hop.errors import ClientLeft
from bus.hop.fault import trace_of
from bus.hop.headers import PRIVATE, REQUEST_ID
from bus.hop.intake import read_body
from bus.hop.tracing import Span, Tracer
from bus.tokens import TokenRates
from proxy.access_log import AccessLine, AccessLog
from proxy.config import ProxyConfig
from proxy.door import Door
from proxy.errors import Problem, error_response, problem_of, response_of
from proxy.facts import BadRequest, Facts, read_facts
from proxy.keys import ApiKey
from proxy.limiter import Lease
from proxy.meter import Meter, asks_for_usage, expected_tokens
from proxy.metrics import ProxyMetrics
from proxy.multipart import model_of_multipart
from proxy.relay import Exchange, Relay
from proxy.selection import Selection, UnknownModel
from proxy.tokenizer import Tokenizers
from proxy.waiting import DeadlineExceeded

log = logging.getLogger("forebay.proxy")

#: Paths of things that one instance made and only it knows.
_OWNED: Final = re.compile(
    r"/v1/(responses|files|batches|uploads|vector_stores|conversations|threads|fine_tuning)(/|$)"
)

#: Paths under /v1/ by which an engine is administered, without their outer slashes: vLLM loads files that they name.
_ENGINE_ADMIN: Final = frozenset({"v1/load_lora_adapter", "v1/unload_lora_adapter"})

#: Characters of a path that are logged.
LONGEST_SHOWN_PATH: Final = 200

#: Client ids that are passed on as they are; any other is replaced.
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class Surface:
    """Handles every request of the API port. `local` are further pages by path: /health, /ready and the like."""

    def __init__(
        self,
        selection: Selection,
        relay: Relay,
        metrics: ProxyMetrics,
        access_log: AccessLog,
        tokenizers: Tokenizers,
        door: Door,
        config: ProxyConfig,
        local: Mapping[str, Page],
        tracer: Tracer | None = None,
    ) -> None:
        self._selection = selection
        self._relay = relay
        self._metrics = metrics
        self._access_log = access_log
        self._tokenizers = tokenizers
        self._door = door
        self._config = config
        self._drop = PRIVATE - {b"authorization"} if config.forward_authorization else PRIVATE
        self._local = local
        self._tracer = tracer

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever way it ends, one line says so."""
        path = request.path
        page = self._local.get(path)
        if page is not None:
            return await page(request)
        given_id = request.headers.get(REQUEST_ID, "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"{getrandbits(128):032x}"
        line = AccessLine(
            at=time.time(), request_id=request_id, method=request.method, path=_shown(path), outcome="cancelled"
        )
        started_s = time.monotonic()
        span: Span | None = None
        try:
            key = self._door.key_of(request)
            line.key = key.name if key else None
            span = self._tracer.request("request", request.raw_headers) if self._tracer else None  # of who is let in
            response = await self._answer(Exchange(request, request_id, line, drop=self._drop, span=span), path, key)
        except (asyncio.CancelledError, ClientLeft):
            line.outcome, line.status = "cancelled", 499
            self._end(line, started_s, span)
            raise
        except Exception as fault:
            problem = problem_of(fault)
            if problem is None:
                log.error("request %s: a fault of ours: %s", request_id, trace_of(fault))  # noqa: TRY400 - see there
                problem = Problem(500, "internal_error", "internal_error")
            line.outcome = "rejected" if problem.status < 500 else "failed"
            response = response_of(fault, problem)
        if not response.prepared:
            response.headers[REQUEST_ID] = request_id
        line.status = response.status
        self._end(line, started_s, span)
        return response

    def _end(self, line: AccessLine, started_s: float, span: Span | None) -> None:
        line.total_ms = round((time.monotonic() - started_s) * 1000, 1)
        if span is not None:
            span.set(request=line.request_id, model=line.model, instance=line.instance, tries=line.tries)
            span.set(outcome=line.outcome, status=line.status)
            span.end("" if line.outcome in {"answered", "rejected"} else line.outcome)
        self._metrics.count(line.status, is_work=line.method == "POST")
        self._access_log.write(line)

    async def _answer(self, exchange: Exchange, path: str, key: ApiKey | None) -> web.StreamResponse:
        request, line = exchange.request, exchange.line
        _check_target(request, path)
        if key is not None:
            exchange.wishes = exchange.wishes.at_most(key.priority)
        response = await self._answer_alone(request, path)
        if response is not None:
            line.outcome = "answered" if response.status < 400 else "rejected"
            return response
        if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        with self._door.receiving(key, request):
            body = await read_body(
                request, limit_bytes=self._config.body_limit_mb * 1024 * 1024, timeout_s=self._config.body_timeout_s
            )
        facts = _facts(request, path, body)
        if facts.exact_tokens is None:
            exact_tokens = await self._tokenizers.count(facts.model, body)
            if exact_tokens is not None:
                facts = msgspec.structs.replace(facts, exact_tokens=exact_tokens)
        if facts.model is None and request.method == "POST":
            facts = msgspec.structs.replace(facts, model=self._only_model())
        if self._selection.knows(facts.model):
            line.model = facts.model  # any other text of a client is no matter for a log
        if key is not None and key.is_limited:
            return await self._relay_within_limits(key, exchange, facts, body)
        return await self._relay.relay(exchange, facts, body)

    async def _relay_within_limits(
        self, key: ApiKey, exchange: Exchange, facts: Facts, body: bytes
    ) -> web.StreamResponse:
        """Relay a request of a key that has limits; what it really spent is counted at its end, where that is known."""
        prompt_tokens = 0
        if key.limits.tokens_per_minute and exchange.request.method == "POST":
            counted = facts.exact_tokens
            prompt_tokens = TokenRates().tokens(facts.text) if counted is None else counted
        asking = asks_for_usage(facts, body) if key.limits.tokens_per_minute else None
        lease = await self._door.let_in(key, expected_tokens(facts, prompt_tokens), exchange.request)
        meter = Meter(strips_usage=asking is not None)
        if asking is not None:
            body, facts = asking, msgspec.structs.replace(facts, wants_usage=True)
        if key.limits.tokens_per_minute:
            exchange.meter = meter
        spent: int | None = 0
        try:
            response = await self._relay.relay(exchange, facts, body)
        except (asyncio.CancelledError, ClientLeft, DeadlineExceeded):  # the engine has worked all the same
            spent = _spent(meter, lease, prompt_tokens)
            raise
        else:
            if response.status < 400:
                spent = _spent(meter, lease, prompt_tokens)
            return response
        finally:
            self._door.let_out(lease, spent)

    async def _answer_alone(self, request: web.BaseRequest, path: str) -> web.Response | None:
        """Answer what needs no instance; None for what is to be relayed. Raises UnknownModel."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            return error_response(501, "WebSocket is not relayed", code="not_implemented")
        if not path.startswith("/v1/"):
            return error_response(404, f"no such path: {_shown(path)}", code="not_found")
        if not self._config.allow_engine_admin and "/".join(filter(None, path.split("/"))) in _ENGINE_ADMIN:
            return error_response(403, "engines are not administered through this gateway", code="admin_path")
        if path == "/v1/models" and request.method == "GET":
            await self._refresh()
            return _json({"object": "list", "data": [_model(name) for name in self._selection.models()]})
        if path.startswith("/v1/models/") and request.method == "GET":
            await self._refresh()
            return self._one_model(path.removeprefix("/v1/models/"))
        if self._needs_its_maker(request.method, path):
            message = "what one instance made cannot be found among several"
            return error_response(501, message, kind="not_implemented", code="not_implemented")
        return None

    async def _refresh(self) -> None:
        """Look at the bus, so that the models are those of now."""
        for reader in self._selection.readers.values():
            await reader.view()

    def _one_model(self, name: str) -> web.Response:
        if name not in self._selection.models():
            raise UnknownModel(name)
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


def _spent(meter: Meter, lease: Lease, prompt_tokens: int) -> int:
    """Tokens of a request: as the engine counted them, else what was expected and no less than what was seen."""
    return meter.tokens if meter.tokens is not None else max(lease.tokens, prompt_tokens + meter.seen_tokens)


def _facts(request: web.BaseRequest, path: str, body: bytes) -> Facts:
    """What the body says; a request without one asks for nothing in particular. Raises BadRequest."""
    if request.method != "POST":
        return Facts()
    if request.content_type.startswith("multipart/"):
        try:
            model = model_of_multipart(request.headers["content-type"], body)
        except ValueError as fault:
            raise BadRequest(f"the body is not multipart: {fault}") from fault
        return Facts(model=model, is_text_only=False)
    return read_facts(path, body)


def _check_target(request: web.BaseRequest, path: str) -> None:
    """Refuse a request target that an engine might read otherwise than this gateway. Raises BadRequest."""
    if not request.raw_path.isascii() or not request.raw_path.startswith("/"):
        raise BadRequest("the request target must be an absolute path of ASCII characters")
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise BadRequest("the request target must not have . or .. as a segment")


def _shown(path: str) -> str:
    """A path as it is logged and told: of what a client says no more than this."""
    return ascii(path[:LONGEST_SHOWN_PATH])[1:-1]


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "forebay"}


def _json(page: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(page), content_type="application/json")
