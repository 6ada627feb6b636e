"""The worker's side of a request: through the queue to the engine and back, bytes untouched.

The status line a worker sends says whether the engine has taken the request: the head of a stream leaves here only
with the engine's first *event*, since engines send a 200 before they decide. What the engine refused goes back as it
came, marked `x-forebay-verdict: refused`: the proxy may send the request elsewhere.
"""

import asyncio
import math
from typing import Final

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from bus.hop.answer import Answer
from bus.hop.errors import AnswerBroke, AnswerTooLarge, AnswerTooSlow, CannotConnect, HopFailed
from bus.hop.headers import (
    BROKE,
    FULL,
    PRIVATE,
    REFUSED,
    REQUEST_ID,
    RESERVATION,
    VERDICT,
    RawHeaders,
    Ticket,
    forwardable,
    header,
    read_ticket,
)
from bus.hop.intake import read_body
from bus.hop.openai_error import error_body, error_event
from bus.hop.reply import StreamReply
from bus.hop.sse import (
    LONGEST_HELD_EVENT,
    EventTap,
    Usage,
    asking_for_usage,
    first_event,
    is_json,
    read_usage,
)
from workers.instance import Instance, Refused
from workers.timeline import Request, Stage
from workers.verdicts import DECLINED, KEY_REFUSALS, REFUSALS, meaning, meaning_of_event, verdict_on

#: A plain answer up to this size is read as a whole before it is passed on; a larger one streams.
HELD_ANSWER_BYTES: Final = 8 * 1024 * 1024

#: Longest body a worker reads: the proxy's own limit is what clients meet.
BODY_LIMIT_BYTES: Final = 4096 * 1024 * 1024

#: Bytes of a body that make one token when no proxy has said how many there are.
_BYTES_PER_TOKEN: Final = 4

#: Path that a worker answers itself: of the paths that engines have only those under /v1/ are relayed.
HEALTH: Final = "/health"

RawReply = list[tuple[str, str]]


class Relay:
    """Handles every request for one instance."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._config = instance.config

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; anything but a POST passes without the queue, but for /health, which is our own."""
        if request.method != "POST":
            return self._health() if request.path == HEALTH else await self._pass_through(request)
        ticket = read_ticket(request.headers.get(RESERVATION, "")) or _own_ticket(request)
        try:
            entry = self._instance.accept(request.headers.get(REQUEST_ID, "") or ticket.reservation, ticket)
        except Refused as refusal:
            self._instance.metrics.count("refused")
            return _refuse(refusal)
        outcome = "cancelled"
        try:
            if self._instance.traces is not None:
                self._instance.traces.begin(entry, request.raw_headers)
            body = await self._wait_for_slot(request, entry, ticket)
            try:
                self._instance.advance(entry, Stage.DISPATCHING)
                exchange = _Exchange(self._instance, request, entry, ticket)
                reply = await exchange.run(body)
                outcome = exchange.outcome
                return reply
            finally:
                self._instance.slot_gate.leave(entry.places)
        except Refused as refusal:
            outcome = "late"
            return _refuse(refusal)
        except HopFailed as fault:
            outcome = "failed"
            self._instance.say_failure("failed before its first event", entry, fault)
            return _engine_failed(fault)
        finally:
            self._instance.finish(entry, outcome)

    async def _wait_for_slot(self, request: web.BaseRequest, entry: Request, ticket: Ticket) -> bytes:
        """Prepare the request, then take its slots of the engine, which are to be given back. Raises Refused when late.

        The time that its client has left counts from its acceptance here: no clock of another host is looked at.
        """
        left_s = math.inf if ticket.left_ms is None else ticket.left_ms / 1000
        queue_s = self._config.queue_timeout_s or math.inf
        limit_s = min(left_s, queue_s)
        try:
            async with asyncio.timeout(None if limit_s == math.inf else limit_s):
                body = await self._prepare(request, entry, ticket)
                await self._instance.slot_gate.enter(ticket.priority, entry.places)
                return body
        except TimeoutError:
            if left_s <= queue_s:
                message = "the request waited longer than its time limit, and was not started"
                raise Refused(504, "deadline_exceeded", message, verdict=None) from None
            message = f"the request waited longer than {queue_s:g} s in the queue of instance {self._instance.id}"
            raise Refused(503, "queue_timeout", message, verdict=FULL) from None

    def _health(self) -> web.Response:
        """Says that this process lives, whatever the engine does: proxies ask when records stay away."""
        page = msgspec.json.encode({"status": "ok", "instance": self._instance.id, "state": self._instance.state})
        return web.Response(body=page, content_type="application/json")

    async def _prepare(self, request: web.BaseRequest, entry: Request, ticket: Ticket) -> bytes:
        """Read the body and ask for the usage where the client did not."""
        async with self._instance.prepare_gate:
            self._instance.advance(entry, Stage.PREPARING)
            body = await read_body(request, limit_bytes=BODY_LIMIT_BYTES)
            body = self._instance.aliases.resolve(body, request.headers.get("content-type", ""))
            if ticket.strips_usage and not self._instance.watch.tells_usage:
                body = asking_for_usage(body)
        self._instance.advance(entry, Stage.READY_QUEUE)
        return body

    async def _pass_through(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = engine_bound(
            request,
            self._instance.engine_headers,
            request_id=request.headers.get(REQUEST_ID, ""),
            forwards_key=self._config.forward_authorization,
        )
        body = await read_body(request, limit_bytes=BODY_LIMIT_BYTES)
        try:
            answer = await self._instance.engine.exchange(
                request.method, request.raw_path, headers, body, head_timeout_s=self._config.first_event_timeout_s
            )
        except HopFailed as fault:
            return _engine_failed(fault)
        try:
            return await _relay_plain(request, answer, self._config.silence_timeout_s)
        except HopFailed as fault:
            return _engine_failed(fault)
        finally:
            answer.abort()


class _Exchange:
    """One request on the engine, from dispatch to its end."""

    def __init__(self, instance: Instance, request: web.BaseRequest, entry: Request, ticket: Ticket) -> None:
        self.outcome = "failed"
        self._instance = instance
        self._request = request
        self._entry = entry
        self._ticket = ticket
        self._silence_s = instance.config.silence_timeout_s
        self._refusals = REFUSALS if instance.config.forward_authorization else REFUSALS | KEY_REFUSALS

    async def run(self, body: bytes) -> web.StreamResponse:
        """Send the request, pass the answer on; HopFailed if there is no first event."""
        instance, request = self._instance, self._request
        limit_s = instance.config.first_event_timeout_s
        started_s = asyncio.get_running_loop().time()
        answer = await instance.engine.exchange(
            request.method,
            request.raw_path,
            engine_bound(
                request,
                instance.engine_headers,
                request_id=self._entry.id if request.headers.get(REQUEST_ID) else "",
                forwards_key=instance.config.forward_authorization,
            ),
            body,
            head_timeout_s=limit_s,
            on_sent=lambda _: instance.advance(self._entry, Stage.PREFILL),
        )
        try:
            if answer.status == 200 and answer.content_type == b"text/event-stream":
                left_s = limit_s - (asyncio.get_running_loop().time() - started_s)
                return await self._stream(answer, left_s)
            return await self._plain(answer)
        finally:
            answer.abort()

    async def _plain(self, answer: Answer) -> web.StreamResponse:
        """Pass on an answer that comes in one piece, an error of the engine included."""
        reply = await _relay_plain(self._request, answer, self._silence_s, self._refusals)
        body = reply.body if isinstance(reply, web.Response) and isinstance(reply.body, bytes) else None
        status = meaning(answer.status, body or b"")
        if status < 400 and answer.is_complete:
            self.outcome = "answered"
            if body is not None:
                self._finish(_usage_of(answer, body))
        elif status in self._refusals and verdict_on(status) == REFUSED:
            self.outcome = "declined"
        elif 400 <= status < 500:
            self.outcome = "rejected"
        elif status >= 500 and status not in self._refusals:
            self.outcome = "declined"
        return reply

    async def _stream(self, answer: Answer, limit_s: float) -> web.StreamResponse:
        """Hold the head until the first event, then let the bytes flow."""
        stream = _Stream(EventTap(strips_usage=self._ticket.strips_usage), answer)
        answer.forward(stream.take, silence_s=max(limit_s, self._silence_s))
        await stream.first_or_end(answer, limit_s)
        headers = reply_headers(answer)
        event = first_event(stream.held)
        status = meaning_of_event(event)
        if status is None and event is not None:
            self._instance.advance(self._entry, Stage.DECODE)
        elif status is not None and (status in DECLINED or status >= 500):  # else it is the client's own mistake
            headers.append((VERDICT, verdict_on(status)))
        reply = await StreamReply.start(self._request, answer.status, headers)
        stream.flow_to(reply)
        try:
            await reply.relay(answer, silence_s=self._silence_s, through=stream.take)
        except HopFailed as fault:
            self._instance.say_failure("broke in mid-stream", self._entry, fault)
            is_silent = isinstance(fault, AnswerTooSlow)
            self.outcome = "silent" if is_silent else "failed"
            if reply.ends_at_event:
                code = "engine_silent" if is_silent else "engine_broke_off"
                reply.write(error_event(f"the engine broke off: {fault}", kind="upstream_error", code=code))
            elif self._request.transport is not None:
                self._request.transport.abort()  # half an event is out: another would become part of it
            return reply.response
        stream.take_rest()
        if status is not None and (status < 500 or status in DECLINED):
            self.outcome = "declined" if status in DECLINED else "rejected"
        else:
            is_broken = stream.tap.has_error or reply.is_broken(self._request.path)
            self.outcome = "failed" if is_broken else "answered"
        self._finish(stream.tap.usage())
        return reply.response

    def _finish(self, usage: Usage | None) -> None:
        self._instance.finish(self._entry, self.outcome, usage=usage, text=self._ticket.text)


class _Stream:
    """The bytes of one stream between the engine's answer and our reply: held until there is a reply to write to.

    From the first event on the engine is made to wait for the reply; one that sends no event has sent enough soon.
    """

    def __init__(self, tap: EventTap, answer: Answer) -> None:
        self.tap = tap
        self._answer = answer
        self.held = b""
        self._reply: StreamReply | None = None
        self._has_event: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, data: bytes) -> None:
        """Sink for the answer."""
        passed = self.tap.feed(data)
        if self._reply is not None:
            if passed:
                self._reply.write(passed)
            return
        self.held += passed
        is_too_long = len(self.held) > LONGEST_HELD_EVENT
        if first_event(self.held) is not None or (is_too_long and b"data:" in self.held):
            if not self._has_event.done():
                self._has_event.set_result(None)
            self._answer.pause()
        elif is_too_long:
            self._answer.abort(AnswerTooLarge(f"no event in the first {len(self.held)} bytes"))

    async def first_or_end(self, answer: Answer, limit_s: float) -> None:
        """Wait for the first event, or the end of a stream without one. Raises HopFailed."""
        await asyncio.wait((self._has_event, answer.end), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not self._has_event.done():
            if not answer.end.done():
                raise AnswerTooSlow(f"no event within {limit_s:g} s")
            await answer.ended()

    def flow_to(self, reply: StreamReply) -> None:
        """Write what was held; from now on nothing is."""
        self._reply = reply
        if self.held:
            reply.write(self.held)
            self.held = b""

    def take_rest(self) -> None:
        """Write what the tap held back of an unfinished last event."""
        rest = self.tap.end()
        if rest and self._reply is not None:
            self._reply.write(rest)


def engine_bound(
    request: web.BaseRequest, engine_headers: RawHeaders, *, request_id: str, forwards_key: bool = False
) -> RawHeaders:
    """Headers for the engine: the client's without private ones, the request id, and the engine's key.

    `request_id` is the client's own, or one made of it where that runs already: vLLM refuses an id that it has, or dies
    of it. `forwards_key`: the client's Authorization too, unless the engine has a key of its own.
    """
    has_key = any(name == b"authorization" for name, _ in engine_headers)
    drop = PRIVATE - {b"authorization"} if forwards_key and not has_key else PRIVATE
    headers = forwardable(request.raw_headers, drop=drop)
    if request_id:
        headers.append((REQUEST_ID.encode(), request_id.encode("utf-8", "surrogateescape")))
    return headers + engine_headers


def _usage_of(answer: Answer, body: bytes) -> Usage | None:
    """Usage of a plain answer. Raises AnswerBroke where the engine says that it is JSON, and it is not.

    Such an engine would draw all traffic: nobody answers as fast as one that does nothing.
    """
    usage = read_usage(body)
    is_told_to_be_json = answer.content_type == b"application/json" and not header(answer.headers, b"content-encoding")
    if usage is None and is_told_to_be_json and not is_json(body):
        raise AnswerBroke("the answer is not the JSON that it is said to be")
    return usage


def reply_headers(answer: Answer) -> RawReply:
    """Headers of an engine's answer that go back."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in forwardable(answer.headers)]


async def _relay_plain(
    request: web.BaseRequest, answer: Answer, silence_s: float, refusals: frozenset[int] = REFUSALS
) -> web.StreamResponse:
    """Pass on a plain answer: whole if it is small, so that a broken one is an error and not half an answer."""
    body = await answer.whole(HELD_ANSWER_BYTES, silence_s=silence_s)
    headers = reply_headers(answer)
    status = meaning(answer.status, body or b"")
    if status in refusals:
        headers.append((VERDICT, verdict_on(status)))
    if body is not None:
        return web.Response(status=answer.status, body=body, headers=CIMultiDict(headers))
    reply = await StreamReply.start(request, answer.status, headers)
    try:
        await reply.relay(answer, silence_s=silence_s)
    except HopFailed:
        if request.transport is not None:
            request.transport.abort()  # half an answer must not look like a whole one
    return reply.response


def _own_ticket(request: web.BaseRequest) -> Ticket:
    """Ticket for a request that no proxy has measured."""
    tokens = max(1, (request.content_length or 0) // _BYTES_PER_TOKEN)
    return Ticket(reservation=f"direct-{id(request):x}", tokens=tokens)


def _refuse(refusal: Refused) -> web.Response:
    headers = {VERDICT: refusal.verdict} if refusal.verdict else {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    kind = {429: "rate_limit_error", 504: "timeout_error"}.get(refusal.status, "service_unavailable")
    body = error_body(str(refusal), kind=kind, code=refusal.code)
    return web.Response(status=refusal.status, body=body, content_type="application/json", headers=headers)


def _engine_failed(fault: HopFailed) -> web.Response:
    """The engine gave no answer: 504 when it was too slow, else 502. Both may go elsewhere."""
    status, code, verdict = 502, "engine_broke_off", BROKE
    if isinstance(fault, AnswerTooSlow):
        status, code = 504, "engine_timeout"
    elif isinstance(fault, CannotConnect):
        code, verdict = "engine_unreachable", REFUSED
    body = error_body(f"the engine did not answer: {fault}", kind="upstream_error", code=code)
    return web.Response(status=status, body=body, content_type="application/json", headers={VERDICT: verdict})
