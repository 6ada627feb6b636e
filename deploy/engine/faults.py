"""What can go wrong with an engine, as one table, and the switch that says what goes wrong now. Pure: no I/O.

A fault is switched on at start (`EngineConfig.fault`) or at run time: `POST /fault` with
`{"kind": KIND, "count": N, "after_tokens": K, "seconds": S, "delay_s": D}`, `DELETE /fault`, `GET /fault`. Real engines
have no such path. `count` is the number of requests it hits before it goes away (null: all), `after_tokens` the tokens
of an answer before a fault in mid-stream, `seconds` the life of the fault (null: for ever), `delay_s` how slow
`slow_metrics` is. While `refuse` or `stop_undrained` is in force nobody can connect, so give it `seconds`.

Of the bodies, `busy_503`, `string_401` and the refusal in a stream are recorded vLLM 0.32.0 and `loading_503` is
llama.cpp's. The others have the shape and the status that was observed; their wording stands for itself.
"""

from enum import Enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from deploy.engine.errors import ENGINE_DEAD, QUEUE_FULL, SHUT_DOWN, UNAUTHORIZED, error_body


class Scope(Enum):
    """Which requests a fault hits; `/fault` itself is always answered."""

    EVERYTHING = "every request"
    WORK = "POST requests under /v1"
    METRICS = "GET /metrics"
    PAGES = "GET /health, /metrics and /v1/models"


class Stage(Enum):
    """When in a request's life a fault shows."""

    LISTENER = "no connection is accepted"
    ARRIVAL = "instead of an answer"
    CONTENT = "in what is taken, or told"
    HEADERS = "about the headers of a stream"
    MIDSTREAM = "after some tokens"
    ENDING = "after the last token"
    DEPARTURE = "after the client has left"


class Canned(msgspec.Struct, frozen=True):
    """An answer that is always the same."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Fault(msgspec.Struct, frozen=True):
    """One way to fail."""

    summary: str
    stage: Stage
    scope: Scope = Scope.WORK
    answer: Canned | None = None


_HTML: Final = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
_LOADING: Final = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
_DETAIL_LIST: Final = (
    b'{"detail":[{"type":"json_invalid","loc":["body",31],"msg":"JSON decode error","input":{},'
    b'"ctx":{"error":"Expecting value"}}]}'
)
_OLD_ERROR: Final = (
    b'{"object":"error","message":"The engine is out of order.","type":"InternalServerError","param":null,"code":500}'
)
_NO_KEY: Final = b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
_RATE_LIMITED: Final = error_body("Too many requests.", "RateLimitError", 429)


def _canned(summary: str, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Fault:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Fault(summary, Stage.ARRIVAL, answer=Canned(status, body, content_type, named))


FAULTS: Final[dict[str, Fault]] = {
    # The connection.
    "refuse": Fault("the listener is closed, connections are refused", Stage.LISTENER, Scope.EVERYTHING),
    "stop_undrained": Fault(
        "the listener is closed, what runs falls silent without an end (vLLM on SIGTERM)",
        Stage.LISTENER,
        Scope.EVERYTHING,
    ),
    "close": Fault("the connection is reset as soon as a request is read", Stage.ARRIVAL, Scope.EVERYTHING),
    "hang": Fault("nothing is answered, to nobody", Stage.ARRIVAL, Scope.EVERYTHING),
    "hang_work": Fault("requests get no byte, /health and /metrics are well", Stage.ARRIVAL),
    "hang_after_headers": Fault("a stream gets its headers and then nothing, /health is well", Stage.HEADERS),
    "hang_pages": Fault(
        "/health, /metrics, /v1/models get no byte, work goes on (llama.cpp)", Stage.ARRIVAL, Scope.PAGES
    ),
    "garbage_bytes": Fault("bytes that are not HTTP, then the end", Stage.ARRIVAL),
    # Refusals.
    "refused_in_stream": Fault("a stream is 200, then an error event 503 and [DONE]; plain: 503", Stage.HEADERS),
    "error_500": _canned("500, engine dead (vLLM)", 500, ENGINE_DEAD),
    "shutdown_500": _canned("500, draining though /health is 200 (vLLM)", 500, SHUT_DOWN),
    "busy_503": _canned("503, queue full, no Retry-After (vLLM, plain)", 503, QUEUE_FULL),
    "loading_503": Fault(
        "503 everywhere while the model loads (llama.cpp)", Stage.ARRIVAL, Scope.EVERYTHING, Canned(503, _LOADING)
    ),
    "rate_limit_429": _canned("429 with Retry-After", 429, _RATE_LIMITED, retry_after="2"),
    "text_500": _canned("500 as plain text (transformers)", 500, b"Internal Server Error", "text/plain"),
    "detail_422": _canned("422 with a list of details (transformers)", 422, _DETAIL_LIST),
    "detail_500": _canned("500 with a detail text", 500, b'{"detail":"Internal Server Error"}'),
    "object_500": _canned("500 as an object of type error (older vLLM)", 500, _OLD_ERROR),
    "string_401": _canned("401 whose error is a string (vLLM)", 401, UNAUTHORIZED),
    "html_502": _canned("502 as a page of HTML, as from a balancer before it", 502, _HTML, "text/html"),
    "garbage_json": _canned("200 with JSON that stops in the middle", 200, b'{"id":"chatcmpl-1","object":"chat.comp'),
    # Surprises that are no refusals.
    "unchecked": Fault("an unknown model and max_tokens 0 are answered 200 (llama.cpp)", Stage.CONTENT),
    "late_headers": Fault("a stream's headers come with its first token only (llama.cpp)", Stage.HEADERS),
    "late_abort": Fault("that the client of a plain request left is noticed after 1 s (llama.cpp)", Stage.DEPARTURE),
    # The middle of an answer.
    "reset_mid_stream": Fault("the connection is reset after some tokens", Stage.MIDSTREAM),
    "close_mid_stream": Fault("the connection ends after some tokens, the body incomplete", Stage.MIDSTREAM),
    "silent_mid_stream": Fault("after some tokens no byte, no end", Stage.MIDSTREAM),
    "error_mid_stream": Fault("after some tokens an error event 500 and [DONE] (vLLM)", Stage.MIDSTREAM),
    "garbage_mid_stream": Fault("after some tokens an event that is not JSON, and the end", Stage.MIDSTREAM),
    "cut_mid_stream": Fault("after some tokens a well-formed end of the body, no finish, no [DONE]", Stage.MIDSTREAM),
    # The end of an answer.
    "no_done": Fault("a stream ends without [DONE] (transformers)", Stage.ENDING),
    "close_after_stream": Fault("closed after a stream though keep-alive was announced (llama.cpp)", Stage.ENDING),
    # Metrics.
    "slow_metrics": Fault("/metrics takes `delay_s` seconds", Stage.ARRIVAL, Scope.METRICS),
    "metrics_404": Fault("/metrics is 404", Stage.ARRIVAL, Scope.METRICS, Canned(404, b'{"detail":"Not Found"}')),
    "metrics_401": Fault("/metrics asks for a key (llama.cpp)", Stage.ARRIVAL, Scope.METRICS, Canned(401, _NO_KEY)),
    "no_kv_gauge": Fault("/metrics says nothing of the KV cache (llama.cpp)", Stage.CONTENT, Scope.METRICS),
    "metrics_garbage": Fault(
        "/metrics is 200 and no metrics", Stage.ARRIVAL, Scope.METRICS, Canned(200, _HTML, "text/html")
    ),
}


#: Paths that tell how an engine is, and run nothing.
_PAGES: Final = frozenset({"/health", "/metrics", "/v1/models"})


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which fault, for how many requests, how late and how long."""

    kind: str
    count: Annotated[int, Meta(ge=1)] | None = None
    after_tokens: Annotated[int, Meta(ge=1)] = 4
    seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    delay_s: Annotated[float, Meta(gt=0, le=86_400)] = 2.0

    def __post_init__(self) -> None:
        """Refuse a kind that is not in the table."""
        if self.kind not in FAULTS:
            raise ValueError(f"fault is {self.kind!r}, allowed are {', '.join(FAULTS)}")

    @property
    def fault(self) -> Fault:
        """Its row of the table."""
        return FAULTS[self.kind]


def parse_fault(text: str) -> FaultOrder:
    """Read `KIND[,count=N][,after_tokens=N][,seconds=S][,delay_s=D]`. Raises ValueError.

    >>> parse_fault("reset_mid_stream,count=1,after_tokens=3")
    FaultOrder(kind='reset_mid_stream', count=1, after_tokens=3, seconds=None, delay_s=2.0)
    """
    kind, *rest = text.split(",")
    settings = dict(item.partition("=")[::2] for item in rest)
    try:
        return msgspec.convert({"kind": kind, **settings}, FaultOrder, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


class FaultSwitch:
    """The fault in force, if any; each request that it hits takes one off its count."""

    def __init__(self, order: FaultOrder | None = None) -> None:
        self.order = order
        self._left = order.count if order else None

    def set(self, order: FaultOrder | None) -> None:
        """Switch a fault on, or all faults off."""
        self.order = order
        self._left = order.count if order else None

    def take(self, method: str, path: str) -> FaultOrder | None:
        """The fault that hits this request, counted; None for a request that it spares."""
        order = self.order
        if order is None or not _is_in_scope(order.fault.scope, method, path):
            return None
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.set(None)
        return order


def _is_in_scope(scope: Scope, method: str, path: str) -> bool:
    match scope:
        case Scope.EVERYTHING:
            return path != "/fault"
        case Scope.WORK:
            return method == "POST" and path.startswith("/v1/")
        case Scope.METRICS:
            return path == "/metrics"
        case Scope.PAGES:
            return method == "GET" and path in _PAGES
