"""From the client's socket to a worker and back: choose, send, pass the bytes on; elsewhere if that fails early.

A worker's status line comes only when its engine has taken the request (workers/relay.py), so that everything before
it may be tried on another instance, and nothing after it.

Only a try on which an instance *broke* is counted (`tries`): there are requests that kill whatever engine they meet,
and one of them must not go round the fleet. Who cannot be reached, declines, drains, is full or has fallen silent uses
up no try: as long as one instance lives that takes the request, it is not lost.
"""

import logging
import math
import time
from typing import Final, NamedTuple

from aiohttp import web
from multidict import CIMultiDict

from bus.hop.answer import Answer
from bus.hop.errors import AnswerTooSlow, CannotConnect, HopFailed
from bus.hop.headers import (
    BROKE,
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
from bus.hop.openai_error import error_event, error_in_shape
from bus.hop.reply import StreamReply
from bus.hop.tracing import Span
from proxy.access_log import AccessLine
from proxy.admission import FleetFull
from proxy.config import ProxyConfig
from proxy.facts import Facts
from proxy.meter import Meter
from proxy.metrics import ProxyMetrics
from proxy.selection import NothingAlive, Selected, Selection
from proxy.uplinks import Uplinks
from proxy.waiting import Attempt, DeadlineExceeded, Suspected, Waiting
from proxy.wishes import read_wishes

log = logging.getLogger("forebay.proxy")

#: A plain answer up to this size is read as a whole: if it breaks, the client gets an error and not half of it.
HELD_ANSWER_BYTES: Final = 8 * 1024 * 1024

_VERDICT: Final = VERDICT.encode()

#: What the error event of a stream says of the fault that broke it, the special first.
_STREAM_CODES: Final = ((DeadlineExceeded, "deadline_exceeded"), (AnswerTooSlow, "worker_silent"))


class Exchange:
    """One client's request while it is relayed."""

    def __init__(
        self,
        request: web.BaseRequest,
        request_id: str,
        line: AccessLine,
        *,
        drop: frozenset[bytes] = PRIVATE,
        span: Span | None = None,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.line = line
        self.started_s = time.monotonic()
        self.wishes = read_wishes(request.headers)
        self.deadline_s = math.inf
        """End of its time on the monotonic clock."""
        self.headers: RawHeaders = forwardable(request.raw_headers, drop=drop)
        self.span = span
        if span is not None:
            self.headers = span.headers(self.headers)
        self.meter: Meter | None = None
        """Counts the tokens of the answer, where the client's key is limited in them."""

    def limit(self, longest_s: float) -> None:
        """Let it take as long as its client wishes, and at most `longest_s`, where that is not 0."""
        limits = [seconds for seconds in (self.wishes.timeout_s, longest_s) if seconds]
        self.deadline_s = self.started_s + min(limits, default=math.inf)


class Refusal(NamedTuple):
    """An answer that says that nothing of the request was done."""

    reply: web.StreamResponse
    verdict: str
    retry_after_s: float | None

    @property
    def hope(self) -> tuple[bool, float]:
        """Sort key: of several refusals a client is told the one that lets it come back the soonest."""
        return self.reply.status != 429, math.inf if self.retry_after_s is None else self.retry_after_s


class Relay:
    """Relays requests to the instances that the selection names."""

    def __init__(self, config: ProxyConfig, selection: Selection, metrics: ProxyMetrics, uplinks: Uplinks) -> None:
        self._config = config
        self._selection = selection
        self._metrics = metrics
        self._uplinks = uplinks
        self.waiting = Waiting()

    async def relay(self, exchange: Exchange, facts: Facts, body: bytes) -> web.StreamResponse:
        """Answer a request by an instance that serves its model. Raises what proxy/errors.py lists."""
        exchange.limit(self._config.request_timeout_s)
        tried: set[str] = set()
        refusals: list[Refusal] = []
        fault: HopFailed | None = None
        tries_left = self._config.tries
        while tries_left and self._may_go_on(exchange, has_failed=bool(tried)):
            selected = await self._next(exchange, facts, tried, refusals)
            if selected is None:
                break
            if tried:
                self._metrics.retries.inc()
            tried.add(selected.instance)
            exchange.line.instance, exchange.line.tries = selected.instance, len(tried)
            exchange.line.prompt_tokens = selected.work.prompt_tokens
            try:
                reply = await self._try(exchange, selected, facts, body)
            except HopFailed as failure:
                log.info("request %s: instance %s failed: %s", exchange.request_id, selected.instance, failure)
                self._selection.give_back(selected)
                if isinstance(failure, DeadlineExceeded):
                    raise
                self._hold_against(selected.instance, failure)
                fault = failure
                tries_left -= not isinstance(failure, (Suspected, CannotConnect))
                continue
            finally:
                self._selection.release(selected)
            if not isinstance(reply, Refusal):
                return reply
            self._selection.give_back(selected)
            self._hold_against(selected.instance, reply)
            refusals.append(reply)
            tries_left -= reply.verdict == BROKE
        if refusals:
            return min(reversed(refusals), key=lambda refusal: refusal.hope).reply
        assert fault is not None  # noqa: S101 - every try ends with an answer, a refusal or a fault
        raise fault

    async def _choose(self, exchange: Exchange, facts: Facts, tried: set[str]) -> Selected:
        """Choose an instance that was not tried. Raises NothingAlive, UnknownModel."""
        if exchange.span is None:
            return await self._selection.choose(exchange.request_id, facts, tried=tried)
        with exchange.span.child("select") as span:
            selected = await self._selection.choose(exchange.request_id, facts, tried=tried)
            predicted_s = selected.decision.predicted_ttft_s
            span.set(instance=selected.instance, attempt=len(tried) + 1, predicted_ttft_s=predicted_s)
            return selected

    async def _next(
        self, exchange: Exchange, facts: Facts, tried: set[str], refusals: list[Refusal]
    ) -> Selected | None:
        """The next instance; None where there is none beside those that were tried."""
        try:
            return await self._choose(exchange, facts, tried)
        except NothingAlive:
            if not tried:
                raise
        except FleetFull:
            if not any(refusal.reply.status == 429 for refusal in refusals):
                raise  # else one of those that were asked has said when to come again
        return None

    def _may_go_on(self, exchange: Exchange, *, has_failed: bool) -> bool:
        """Whether a request may be sent, and one that has failed sent elsewhere. Raises DeadlineExceeded."""
        now = time.monotonic()
        if now >= exchange.deadline_s:
            raise DeadlineExceeded("the request took longer than its time limit")
        return not has_failed or now - exchange.started_s <= self._config.retry_window_s

    def _hold_against(self, instance: str, failure: HopFailed | Refusal) -> None:
        """Tell the selection what a failure says about the instance; that its worker is full or drains says nothing."""
        ejections, now = self._selection.ejections, time.monotonic()
        if isinstance(failure, Suspected):
            return  # it is out already
        if isinstance(failure, HopFailed):
            ejections.failed(instance, now, needs_health=not isinstance(failure, AnswerTooSlow))
        elif failure.verdict in (REFUSED, BROKE):
            if failure.retry_after_s:  # who says 0 has named no time, and would draw all traffic
                ejections.rest(instance, failure.retry_after_s, now)
            else:
                ejections.failed(instance, now)

    async def _try(
        self, exchange: Exchange, selected: Selected, facts: Facts, body: bytes
    ) -> web.StreamResponse | Refusal:
        """Send the request to one instance. HopFailed before anything of an answer has gone to the client."""
        request = exchange.request
        headers = list(exchange.headers)
        headers.append((REQUEST_ID.encode(), exchange.request_id.encode()))
        if request.method == "POST":
            headers.append((RESERVATION.encode(), _ticket(exchange, selected, facts).encode()))
        attempt = Attempt(self.waiting, selected.instance, exchange.deadline_s)
        try:
            answer = await self._uplinks.client(selected.pressure.registration.worker_url).exchange(
                request.method,
                request.raw_path,
                headers,
                body,
                head_timeout_s=self._config.first_event_timeout_s,
                on_sent=attempt.sent,
            )
            try:
                return await self._pass_on(exchange, selected, answer, attempt)
            finally:
                answer.abort()
        finally:
            attempt.end()

    async def _pass_on(
        self, exchange: Exchange, selected: Selected, answer: Answer, attempt: Attempt
    ) -> web.StreamResponse | Refusal:
        """Pass an answer on to the client; a refusal only where there is no elsewhere."""
        verdict = header(answer.headers, _VERDICT)
        if verdict is not None:
            exchange.line.outcome = "failed"
        else:
            is_stream = answer.content_type == b"text/event-stream"
            exchange.line.outcome = _outcome(answer.status)
            if is_stream:
                self._selection.ejections.succeeded(selected.instance, selected.standing, is_whole=False)
                return await self._stream(exchange, selected, answer, attempt)
        reply = await self._plain(exchange, selected, answer, attempt)
        if verdict is None and answer.status < 500 and not reply.prepared:  # else `_stream` has said how it ended
            self._selection.ejections.succeeded(selected.instance, selected.standing)
        if verdict is None or reply.prepared:
            return reply
        return Refusal(reply, verdict.decode("latin-1"), _seconds(header(answer.headers, b"retry-after")))

    async def _stream(
        self, exchange: Exchange, selected: Selected, answer: Answer, attempt: Attempt
    ) -> web.StreamResponse:
        """Pass a stream on; if it breaks, say so in an error event, where one can follow."""
        attempt.has_event()
        self._saw_first_event(exchange, selected)
        reply = await StreamReply.start(exchange.request, answer.status, _reply_headers(exchange, selected, answer))
        through = exchange.meter.through(reply.write, answer.content_type) if exchange.meter else None
        try:
            await reply.relay(answer, silence_s=self._config.silence_timeout_s, through=through)
            if exchange.meter and (rest := exchange.meter.rest()):
                reply.write(rest)
            is_stream = answer.content_type == b"text/event-stream"
            if is_stream and reply.is_broken(exchange.request.path):
                exchange.line.outcome = "broken"
                self._metrics.broken.inc()
                self._selection.ejections.failed(selected.instance, time.monotonic())
            else:
                self._selection.ejections.succeeded(selected.instance, selected.standing)
        except HopFailed as fault:
            log.info("request %s: stream from %s broke: %s", exchange.request_id, selected.instance, fault)
            exchange.line.outcome = "broken"
            self._metrics.broken.inc()
            if not isinstance(fault, DeadlineExceeded):
                self._hold_against(selected.instance, fault)
            if answer.content_type == b"text/event-stream" and reply.ends_at_event:
                code = next((code for kind, code in _STREAM_CODES if isinstance(fault, kind)), "worker_broke_off")
                reply.write(error_event(f"the stream broke off: {fault}", kind="upstream_error", code=code))
            elif exchange.request.transport is not None:
                exchange.request.transport.abort()  # half an answer must not look like a whole one
        return reply.response

    async def _plain(
        self, exchange: Exchange, selected: Selected, answer: Answer, attempt: Attempt
    ) -> web.StreamResponse:
        """Pass on an answer in one piece."""
        body = await answer.whole(HELD_ANSWER_BYTES, silence_s=self._config.silence_timeout_s)
        if body is None:
            return await self._stream(exchange, selected, answer, attempt)
        if exchange.meter and answer.status < 400:
            exchange.meter.saw_whole(body)
        if header(answer.headers, _VERDICT) is None:
            self._saw_first_event(exchange, selected)
        headers = CIMultiDict(_reply_headers(exchange, selected, answer))
        if answer.status >= 400 and "content-encoding" not in headers and exchange.request.method != "HEAD":
            told = error_in_shape(answer.status, headers.get("content-type", ""), body)
            if told is not None:
                body, headers["content-type"] = told, "application/json"
        return web.Response(status=answer.status, body=body, headers=headers)

    def _saw_first_event(self, exchange: Exchange, selected: Selected) -> None:
        seconds = time.monotonic() - exchange.started_s
        selected.decision.real_ttft_s = seconds
        exchange.line.ttft_ms = round(seconds * 1000, 1)
        self._metrics.saw_ttft(seconds, selected.decision.predicted_ttft_s)


def _outcome(status: int) -> str:
    """How a request ended that was passed on with this status."""
    return "answered" if status < 400 else "rejected" if status < 500 else "failed"


def _seconds(retry_after: bytes | None) -> float | None:
    """Value of a Retry-After header; None for none, and for a date, since no clocks are compared.

    >>> _seconds(b"7"), _seconds(b"Wed, 21 Oct 2015 07:28:00 GMT"), _seconds(None)
    (7.0, None, None)
    """
    return float(retry_after) if retry_after is not None and retry_after.isdigit() and len(retry_after) < 10 else None


def _ticket(exchange: Exchange, selected: Selected, facts: Facts) -> str:
    """Value of the header that tells the worker what work this is."""
    left_s = exchange.deadline_s - time.monotonic()
    return write_ticket(
        Ticket(
            reservation=selected.reservation,
            tokens=selected.work.prompt_tokens,
            text=selected.work.text,
            sequences=selected.work.sequences,
            output=facts.output_cap,
            is_stream=facts.is_stream,
            strips_usage=not facts.wants_usage,
            priority=exchange.wishes.priority,
            left_ms=None if left_s == math.inf else max(1, round(left_s * 1000)),
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
