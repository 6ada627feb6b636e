"""The routes of a simulated engine, and the way of a request through them. No scheduling, no rendering of texts."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import HttpVersion11, web

from deploy.engine import breakage, metrics
from deploy.engine.answers import models_body, plain_body
from deploy.engine.batching import QueueFull
from deploy.engine.config import EngineConfig
from deploy.engine.errors import NOT_ALLOWED, NOT_FOUND, QUEUE_FULL, UNAUTHORIZED, Refused
from deploy.engine.exchange import PlainExchange, StreamExchange
from deploy.engine.faults import Canned, FaultOrder, FaultSwitch, Stage
from deploy.engine.intake import Api, Asked, parse
from deploy.engine.responses import ResponseWording
from deploy.engine.stepping import StepLoop
from deploy.engine.text import TokenText
from deploy.engine.wording import DONE, ChunkWording, Wording, event, json_text

BODY_LIMIT_BYTES: Final = 256 * 1024 * 1024
ENGINE_VERSION: Final = "0.32.0"  # whose surface this is
_LATE_ABORT_S: Final = 1.0  # llama.cpp, observed
_STREAM_HEADERS: Final = {**breakage.HEADERS, "content-type": "text/event-stream; charset=utf-8"}
_ORDER: Final = web.RequestKey("order", FaultOrder)
_decode_order: Final = msgspec.json.Decoder(FaultOrder).decode

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Surface:
    """vLLM's HTTP interface over one step loop; `on_fault` hears of every fault that is switched on or off by HTTP."""

    def __init__(
        self,
        config: EngineConfig,
        counters: metrics.Counters,
        steps: StepLoop,
        switch: FaultSwitch,
        on_fault: Callable[[FaultOrder | None, web.Request], Awaitable[None]],
    ) -> None:
        self._config = config
        self._counters = counters
        self._steps = steps
        self._switch = switch
        self._on_fault = on_fault
        self._text = TokenText(config.seed)
        self._created_s = int(time.time())
        self._load = 0
        self._bearer = f"Bearer {config.api_key}"

    def application(self) -> web.Application:
        """The aiohttp application with every route."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        application = web.Application(middlewares=[guard], client_max_size=BODY_LIMIT_BYTES)
        application.add_routes(
            [
                web.post("/v1/chat/completions", self._on(Api.CHAT)),
                web.post("/v1/completions", self._on(Api.COMPLETION)),
                web.post("/v1/responses", self._on(Api.RESPONSE)),
                web.post("/v1/embeddings", self._on(Api.EMBEDDING)),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/version", self._version),
                web.get("/load", self._server_load),
                web.get("/metrics", self._metrics),
                web.get("/fault", self._show_fault),
                web.post("/fault", self._set_fault),
                web.delete("/fault", self._clear_fault),
            ]
        )
        return application

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        order = self._switch.take(request.method, request.path)
        if order is not None:
            if order.fault.stage is Stage.ARRIVAL and (answer := await breakage.on_arrival(request, order)) is not None:
                return answer
            request[_ORDER] = order
        if self._config.api_key and request.path.startswith("/v1"):
            given = request.headers.get("authorization", "")
            if not secrets.compare_digest(given.encode(), self._bearer.encode()):
                return _json(401, UNAUTHORIZED)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _json(404, NOT_FOUND)
        except web.HTTPMethodNotAllowed as error:
            response = _json(405, NOT_ALLOWED)
            response.headers["allow"] = ", ".join(sorted(error.allowed_methods))
            return response

    def _on(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._load += 1
            try:
                order = request.get(_ORDER)
                is_checked = order is None or order.kind != "unchecked"
                body = await request.read()
                asked = parse(body, request.content_type, api, self._config, is_checked=is_checked)
                answer_id = api.value + (request.headers.get("x-request-id") or secrets.token_hex(8))
                run = self._stream if asked.is_stream else self._plain
                return await run(request, asked, answer_id, order)
            except Refused as refused:
                return _json(refused.status, refused.body)
            finally:
                self._load -= 1

        return handle

    async def _plain(
        self, request: web.Request, asked: Asked, answer_id: str, order: FaultOrder | None
    ) -> web.StreamResponse:
        if order is not None and order.kind == "refused_in_stream":
            return _json(503, QUEUE_FULL)
        if order is not None and order.kind == "hang_after_headers":
            await breakage.until_client_leaves()
        exchange = PlainExchange(asked, break_after=_break_after(order))
        try:
            self._steps.submit(asked, exchange.choices)
            is_whole = await exchange.done
        except QueueFull:
            return _json(503, QUEUE_FULL)
        finally:
            if order is not None and order.kind == "late_abort" and exchange.done.cancelled():
                asyncio.get_running_loop().call_later(_LATE_ABORT_S, self._steps.abort, exchange.choices)
            else:
                self._steps.abort(exchange.choices)
        if not is_whole:
            return await breakage.in_plain(breakage.transport_of(request), order.kind if order else "")
        self._count_success(asked)
        texts = [self._text.tokens(choice.offset, choice.tokens).decode() for choice in exchange.choices]
        return _json(200, plain_body(asked, answer_id, int(time.time()), texts))

    async def _stream(
        self, request: web.Request, asked: Asked, answer_id: str, order: FaultOrder | None
    ) -> web.StreamResponse:
        # As in vLLM, the status and the headers leave before anybody knows whether the engine takes the request.
        kind = order.kind if order else ""
        is_held = kind == "late_headers"
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        is_chunked = request.version >= HttpVersion11
        if is_chunked:
            response.enable_chunked_encoding()
        if not is_held:
            await response.prepare(request)
        if kind == "hang_after_headers":
            await breakage.until_client_leaves()
        transport = breakage.transport_of(request)
        wording = _wording(asked, answer_id)
        exchange = StreamExchange(
            asked,
            wording,
            self._text,
            transport,
            is_chunked=is_chunked,
            tokens_per_chunk=self._config.tokens_per_chunk,
            break_after=_break_after(order),
            has_done=kind != "no_done",
            is_held=is_held,
        )

        async def begin() -> None:
            await exchange.has_begun.wait()
            await response.prepare(request)
            exchange.release()

        if start := wording.start():
            exchange.write(start)
        if kind == "refused_in_stream" or not await self._run(asked, exchange, begin if is_held else None):
            if is_held:
                return _json(503, QUEUE_FULL)
            exchange.write(event(QUEUE_FULL) + DONE)
        elif exchange.done.result():
            self._count_success(asked)
        else:
            await breakage.in_stream(transport, exchange, kind)
        await response.write_eof()
        if kind == "close_after_stream":
            transport.close()
        return response

    async def _run(self, asked: Asked, exchange: StreamExchange, begin: Callable[[], Awaitable[None]] | None) -> bool:
        """Wait for the end of a stream's tokens; False if the engine did not take the request.

        `begin` waits for the first token and sends the headers of a stream that has none yet.
        """
        try:
            self._steps.submit(asked, exchange.choices)
            if begin is not None:
                await begin()
            await exchange.done
        except QueueFull:
            return False
        finally:
            self._steps.abort(exchange.choices)
        return True

    def _count_success(self, asked: Asked) -> None:
        self._counters.succeeded[asked.finish_reason] += asked.n * len(asked.prompts)

    async def _models(self, _: web.Request) -> web.Response:
        config = self._config
        return _json(200, models_body(config.models, self._created_s, config.batching.max_model_len))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(headers=breakage.HEADERS)

    async def _version(self, _: web.Request) -> web.Response:
        return _json(200, json_text({"version": ENGINE_VERSION}))

    async def _server_load(self, _: web.Request) -> web.Response:
        return _json(200, json_text({"server_load": self._load}))

    async def _metrics(self, request: web.Request) -> web.Response:
        order = request.get(_ORDER)
        has_kv_gauge = order is None or order.kind != "no_kv_gauge"
        page = metrics.page(self._steps.batcher, self._counters, self._config.models[0], has_kv_gauge=has_kv_gauge)
        return web.Response(body=page.encode(), headers={**breakage.HEADERS, "content-type": metrics.CONTENT_TYPE})

    async def _show_fault(self, _: web.Request) -> web.Response:
        return _json(200, json_text(self._switch.order))

    async def _set_fault(self, request: web.Request) -> web.Response:
        try:
            order = _decode_order(await request.read())
        except msgspec.MsgspecError as error:
            return _json(400, json_text({"detail": str(error)}))
        await self._on_fault(order, request)
        return _json(200, json_text(order))

    async def _clear_fault(self, request: web.Request) -> web.Response:
        await self._on_fault(None, request)
        return _json(200, json_text(None))


def _json(status: int, body: bytes) -> web.Response:
    return breakage.canned_response(Canned(status, body))


def _break_after(order: FaultOrder | None) -> int | None:
    return order.after_tokens if order is not None and order.fault.stage is Stage.MIDSTREAM else None


def _wording(asked: Asked, answer_id: str) -> Wording:
    created_s = int(time.time())
    if asked.api is Api.RESPONSE:
        return ResponseWording(asked, answer_id, created_s, f"msg_{secrets.token_hex(8)}")
    return ChunkWording(asked, answer_id, created_s)
