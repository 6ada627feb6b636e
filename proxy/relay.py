"""From the client's socket to a worker and back: choose, send, pass the bytes on; elsewhere if that fails early.

A worker's status line comes only when its engine has taken the request (workers/relay.py), so that everything before
it may be tried on another instance, and nothing after it.
"""

import logging
import time
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from bus.hop.answer import Answer
from bus.hop.errors import HopFailed
from bus.hop.headers import (
    INSTANCE,
    PRIVATE,
    REFUSED,
    REQUEST_ID,
    RESERVATION,
    VERDICT,
    RawHeaders,
    Ticket,
    forwardable,
    header,
    write_ticket,
)
from bus.hop.openai_error import error_event
from bus.hop.reply import StreamReply
from proxy.access_log import AccessLine
from proxy.config import ProxyConfig
from proxy.facts import Facts
from proxy.meter import Meter
from proxy.metrics import ProxyMetrics
from proxy.selection import NothingAlive, Selected, Selection
from proxy.uplinks import Uplinks

log = logging.getLogger("forebay.proxy")

#: A plain answer up to this size is read as a whole: if it breaks, the client gets an error and not half of it.
HELD_ANSWER_BYTES: Final = 8 * 1024 * 1024

_VERDICT: Final = VERDICT.encode()

#: Refusals that say that an engine is gone or hangs; the others say that it is full, or might be the request's fault.
_ENGINE_FAILED: Final = frozenset({502, 504})


class Exchange:
    """One client's request while it is relayed."""

    def __init__(
        self,
        request: web.BaseRequest,
        request_id: str,
        line: AccessLine,
        *,
        drop: frozenset[bytes] = PRIVATE,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.line = line
        self.started_s = time.monotonic()
        self.headers: RawHeaders = forwardable(request.raw_headers, drop=drop)
        self.meter: Meter | None = None
        """Counts the tokens of the answer, where the client's key is limited in them."""


class Relay:
    """Relays requests to the instances that the selection names."""

    def __init__(self, config: ProxyConfig, selection: Selection, metrics: ProxyMetrics, uplinks: Uplinks) -> None:
        self._config = config
        self._selection = selection
        self._metrics = metrics
        self._uplinks = uplinks

    async def relay(self, exchange: Exchange, facts: Facts, body: bytes) -> web.StreamResponse:
        """Answer a request by an instance that serves its model. Raises what proxy/errors.py lists."""
        tried: set[str] = set()
        refused: web.StreamResponse | None = None
        fault: HopFailed | None = None
        while len(tried) < self._config.tries:
            try:
                selected = await self._selection.choose(exchange.request_id, facts, tried=tried)
            except NothingAlive:
                if not tried:
                    raise
                break
            if tried:
                self._metrics.retries.inc()
            tried.add(selected.instance)
            exchange.line.instance, exchange.line.tries = selected.instance, len(tried)
            exchange.line.prompt_tokens = selected.work.prompt_tokens
            try:
                is_final, reply = await self._try(exchange, selected, facts, body)
            except HopFailed as failure:
                log.info("request %s: instance %s failed: %s", exchange.request_id, selected.instance, failure)
                self._selection.ejections.failed(selected.instance, time.monotonic())
                self._selection.give_back(selected)
                fault = failure
                continue
            finally:
                self._selection.release(selected.instance)
            if is_final:
                return reply
            self._selection.give_back(selected)
            if reply.status in _ENGINE_FAILED:
                self._selection.ejections.failed(selected.instance, time.monotonic())
            refused = reply
        if refused is not None:
            return refused
        assert fault is not None  # noqa: S101 - every try ends with an answer, a refusal or a fault
        raise fault

    async def _try(
        self, exchange: Exchange, selected: Selected, facts: Facts, body: bytes
    ) -> tuple[bool, web.StreamResponse]:
        """Send the request to one instance: (True, answer), or (False, refusal). HopFailed before its head."""
        request = exchange.request
        headers = list(exchange.headers)
        headers.append((REQUEST_ID.encode(), exchange.request_id.encode()))
        if request.method == "POST":
            headers.append((RESERVATION.encode(), _ticket(selected, facts).encode()))
        answer = await self._uplinks.client(selected.pressure.registration.worker_url).exchange(
            request.method,
            request.raw_path,
            headers,
            body,
            head_timeout_s=self._config.first_event_timeout_s,
        )
        try:
            is_refused = _is_refused(answer)
            if is_refused:
                exchange.line.outcome = "failed"
            else:
                self._selection.ejections.succeeded(selected.instance)
                exchange.line.outcome = "answered" if answer.status < 400 else "rejected"
            if not is_refused and answer.content_type == b"text/event-stream":
                return True, await self._stream(exchange, selected, answer)
            reply = await self._plain(exchange, selected, answer)
            return not is_refused or reply.prepared, reply
        finally:
            answer.abort()

    async def _stream(self, exchange: Exchange, selected: Selected, answer: Answer) -> web.StreamResponse:
        """Pass a stream on; if it breaks, say so in an error event, where one can follow."""
        self._saw_first_event(exchange, selected)
        reply = await StreamReply.start(exchange.request, answer.status, _reply_headers(exchange, selected, answer))
        through = exchange.meter.through(reply.write) if exchange.meter else None
        try:
            await reply.relay(answer, silence_s=self._config.silence_timeout_s, through=through)
            if exchange.meter and (rest := exchange.meter.rest()):
                reply.write(rest)
        except HopFailed as fault:
            log.info("request %s: stream from %s broke: %s", exchange.request_id, selected.instance, fault)
            exchange.line.outcome = "broken"
            self._metrics.broken.inc()
            if answer.content_type == b"text/event-stream" and reply.ends_at_event:
                reply.write(
                    error_event(f"the stream broke off: {fault}", kind="upstream_error", code="worker_broke_off")
                )
            elif exchange.request.transport is not None:
                exchange.request.transport.abort()  # half an answer must not look like a whole one
        return reply.response

    async def _plain(self, exchange: Exchange, selected: Selected, answer: Answer) -> web.StreamResponse:
        """Pass on an answer in one piece."""
        body = await answer.whole(HELD_ANSWER_BYTES, silence_s=self._config.silence_timeout_s)
        if body is None:
            return await self._stream(exchange, selected, answer)
        if exchange.meter and answer.status < 400:
            exchange.meter.saw_whole(body)
        if not _is_refused(answer):
            self._saw_first_event(exchange, selected)
        headers = CIMultiDict(_reply_headers(exchange, selected, answer))
        return web.Response(status=answer.status, body=body, headers=headers)

    def _saw_first_event(self, exchange: Exchange, selected: Selected) -> None:
        seconds = time.monotonic() - exchange.started_s
        selected.decision.real_ttft_s = seconds
        exchange.line.ttft_ms = round(seconds * 1000, 1)
        self._metrics.saw_ttft(seconds, selected.decision.predicted_ttft_s)


def _is_refused(answer: Answer) -> bool:
    """Whether nothing of the request was done there."""
    return header(answer.headers, _VERDICT) == REFUSED.encode()


def _ticket(selected: Selected, facts: Facts) -> str:
    """Value of the header that tells the worker what work this is."""
    return write_ticket(
        Ticket(
            reservation=selected.reservation,
            tokens=selected.work.prompt_tokens,
            text=selected.work.text,
            sequences=selected.work.sequences,
            output=facts.output_cap,
            is_stream=facts.is_stream,
            strips_usage=not facts.wants_usage,
        )
    )


def _reply_headers(exchange: Exchange, selected: Selected, answer: Answer) -> list[tuple[str, str]]:
    """Headers for the client: the engine's, the request's id and the instance that answered."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in forwardable(answer.headers, drop=frozenset({REQUEST_ID.encode()}))
    ]
    headers.append((REQUEST_ID, exchange.request_id))
    headers.append((INSTANCE, selected.instance))
    return headers
