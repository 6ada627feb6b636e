"""How a listener takes requests in: limits on how slowly they come, and refusals in OpenAI's shape.

The parser is aiohttp's. What came is never logged: behind a wrong length, a piece of a prompt looks like a request.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final

from aiohttp import HttpVersion11, http_exceptions, web

from bus.hop.errors import BodyTooLarge, BodyTooSlow, BodyUnreadable, ClientLeft, RequestUnusable
from bus.hop.fault import trace_of
from bus.hop.openai_error import error_body

log = logging.getLogger("forebay")

#: Longest request line, and longest header, bytes.
LINE_BYTES: Final = 8190

#: Most headers of one request.
MOST_HEADERS: Final = 128

#: Time for a head from its first byte to its last, s.
HEAD_S: Final = 15.0

#: Time for the first byte of a connection, s; between two requests it is the listener's keep-alive.
FIRST_BYTE_S: Final = 60.0

#: Time for a body, s.
BODY_S: Final = 120.0


_HOST: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")


class Intake(web.RequestHandler):
    """One connection of a client. `on_unusable(status)` is called for a request that reaches no handler."""

    def __init__(
        self,
        manager: web.Server,
        *,
        head_timeout_s: float = HEAD_S,
        on_unusable: Callable[[int], None] | None = None,
        **settings: Any,  # noqa: ANN401 - aiohttp's own
    ) -> None:
        super().__init__(
            manager, max_line_size=LINE_BYTES, max_field_size=LINE_BYTES, max_headers=MOST_HEADERS, **settings
        )
        self._head_timeout_s = head_timeout_s
        self._on_unusable = on_unusable
        self._head_timer: asyncio.TimerHandle | None = None
        self._first_byte_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a first byte, not for ever."""
        super().connection_made(transport)
        self._first_byte_timer = self._loop.call_later(FIRST_BYTE_S, self.force_close)

    def data_received(self, data: bytes) -> None:
        """Parse; from the first byte of a head on, its time runs."""
        if self._first_byte_timer is not None:
            self._first_byte_timer.cancel()
            self._first_byte_timer = None
        requests_before = self._request_count
        super().data_received(data)
        if self._request_count != requests_before:
            self._stop_timer()
        elif data and self._head_timer is None and (self._waiter is not None or not requests_before):  # idle until now
            self._head_timer = self._loop.call_later(self._head_timeout_s, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing is waited for any longer."""
        self._stop_timer()
        if self._first_byte_timer is not None:
            self._first_byte_timer.cancel()
        super().connection_lost(exc)

    def let_go(self) -> None:
        """End the connection: at once if it is idle, else after the answer under way."""
        if self._waiter is not None:
            self.force_close()
        else:
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer for what could not be parsed, or what a handler did not catch; the connection closes after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if isinstance(exc, ClientLeft):
            raise ConnectionError("nobody is there to be answered") from exc
        if status == 500 and exc is not None and not isinstance(exc, RequestUnusable):
            self.log_exception("a fault of ours", exc_info=exc)
        fault = exc if isinstance(exc, RequestUnusable) else _unusable(status, exc)
        if self._on_unusable is not None:
            self._on_unusable(fault.status)
        response = refusal_of(fault)
        response.force_close()
        return response

    def log_exception(self, *_: Any, exc_info: BaseException | None = None, **__: Any) -> None:  # noqa: ANN401
        """Say where a fault of ours came from; a body that breaks off is a client's, and fills no log."""
        is_clients = isinstance(exc_info, (web.RequestPayloadError, http_exceptions.HttpProcessingError))
        level = logging.DEBUG if is_clients else logging.ERROR
        log.log(level, "a connection failed: %s", trace_of(exc_info) if exc_info else "")

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport is None or self._force_close:
            return
        fault = RequestUnusable(f"no whole request head within {self._head_timeout_s:g} s", 408, "request_timeout")
        body = error_body(str(fault), kind="invalid_request_error", code=fault.code)
        head = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        if self._on_unusable is not None:
            self._on_unusable(fault.status)
        self.force_close()


class IntakeServer(web.Server):
    """Makes an Intake for each connection."""

    def __init__(self, handler: Any, *, intake: dict[str, Any], **settings: Any) -> None:  # noqa: ANN401
        super().__init__(handler, **settings)
        self._intake = intake

    def __call__(self) -> web.RequestHandler:
        """A new connection."""
        return Intake(self, loop=self._loop, **self._intake, **self._kwargs)


def check_head(request: web.BaseRequest) -> None:
    """Refuse what aiohttp reads and others may read otherwise: RFC 9112, 3.2 and 6.1. Raises RequestUnusable."""
    if _HOST.fullmatch(request.headers.get("host", "")) is None:
        raise RequestUnusable("the Host header is not valid", 400, "bad_request")
    coding = request.headers.get("transfer-encoding")
    if coding is not None and request.version < HttpVersion11:
        raise RequestUnusable("HTTP/1.0 has no Transfer-Encoding", 400, "bad_request")
    if coding is not None and coding.strip().lower() != "chunked":
        raise RequestUnusable("of transfer codings only chunked is understood", 501, "not_implemented")


async def read_body(request: web.BaseRequest, *, limit_bytes: int, timeout_s: float = BODY_S) -> bytes:
    """Whole body of a request. Raises BodyTooLarge, BodyTooSlow, BodyUnreadable."""
    if (request.content_length or 0) > limit_bytes:
        raise BodyTooLarge
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError as fault:
        raise BodyTooSlow(timeout_s) from fault
    except web.HTTPRequestEntityTooLarge as fault:
        raise BodyTooLarge from fault
    except (web.RequestPayloadError, http_exceptions.HttpProcessingError) as fault:
        raise BodyUnreadable from fault


def refusal_of(fault: RequestUnusable) -> web.Response:
    """Answer in OpenAI's shape."""
    kind = "internal_error" if fault.status == 500 else "invalid_request_error"
    body = error_body(str(fault), kind=kind, code=fault.code)
    return web.Response(status=fault.status, body=body, content_type="application/json")


def _unusable(status: int, exc: BaseException | None) -> RequestUnusable:
    """What to say of aiohttp's own verdict; none of the client's bytes are repeated."""
    if isinstance(exc, http_exceptions.LineTooLong):
        return RequestUnusable("the request line or a header is too long", 431, "headers_too_large")
    if status < 500:
        return RequestUnusable("the request is not valid HTTP/1.1", status, "bad_request")
    return RequestUnusable("the gateway failed; its log says where", status, "internal_error")
