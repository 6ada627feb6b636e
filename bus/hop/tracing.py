"""Spans of requests, by OpenTelemetry, where an endpoint is configured.

The packages are an optional extra (`pip install forebay[tracing]`) and are imported only here, and only then. A span
carries numbers, ids and names of ours: never anything of a prompt or an answer. Sampling and the like follow the
standard variables (OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from bus.errors import ForebayError
from bus.hop.headers import RawHeaders

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span as OtelSpan

log = logging.getLogger("forebay.tracing")

#: W3C Trace Context: which trace a request belongs to, and what vendors add to that.
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
TRACE_HEADERS: Final = frozenset({TRACEPARENT, TRACESTATE})

#: Path of the collector where traces go, if the endpoint names none.
_PATH: Final = "/v1/traces"

#: Longest wait for the collector: what cannot be sent is dropped, also at the end of the process.
SEND_S: Final = 2.0


class TracingUnusable(ForebayError):
    """Traces are wanted, and cannot be made."""


class Span:
    """Something that takes time; ended once."""

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        self._tracer = tracer
        self._span = span

    @contextlib.contextmanager
    def child(self, name: str) -> Iterator[Span]:
        """A part of it: ends with the block, as an error if that raises."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start(name, set_span_in_context(self._span))
        fault = "cancelled"
        try:
            yield span
            fault = ""
        except Exception as error:
            fault = type(error).__name__
            raise
        finally:
            span.end(fault)

    def set(self, **attributes: str | int | float | bool | None) -> None:
        """Add what is known of it, under `forebay.`; what is None is not."""
        known = {f"forebay.{name}": value for name, value in attributes.items() if value is not None}
        self._span.set_attributes(known)

    def headers(self, headers: RawHeaders) -> RawHeaders:
        """Headers of a request that is a part of it: in place of those that told of its parent."""
        from opentelemetry.trace import set_span_in_context

        return self._tracer.inject(set_span_in_context(self._span), headers)

    def end(self, fault: str = "") -> None:
        """End it, now; with a fault it is an error."""
        if fault:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, fault))
        self._span.end(time.time_ns())


class Tracer:
    """Makes spans and sends them to a collector. Raises TracingUnusable if the packages are not there.

    `service` and `name` say which process this is. Tests hand in an exporter of their own.
    """

    def __init__(self, endpoint: str, *, service: str, name: str, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as fault:
            message = "--otlp-endpoint needs packages that are not there: pip install 'forebay[tracing]'"
            raise TracingUnusable(message) from fault
        resource = Resource.create({"service.name": service, "service.instance.id": name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if exporter is not None:
            self._provider.add_span_processor(SimpleSpanProcessor(exporter))
        else:
            logging.getLogger("opentelemetry").setLevel(
                logging.CRITICAL
            )  # it says at every batch what is said once here
            sender = _saying_once(OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=SEND_S), endpoint)
            self._provider.add_span_processor(BatchSpanProcessor(sender))
        self._tracer = self._provider.get_tracer("forebay")
        self._propagator = TraceContextTextMapPropagator()

    def parent(self, headers: Iterable[tuple[bytes, bytes]]) -> Context:
        """What the headers of a request say that it is a part of; nothing, if they do not."""
        from opentelemetry.context import Context

        told = {
            name.lower().decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name.lower() in TRACE_HEADERS
        }
        return self._propagator.extract(told, Context())

    def request(self, name: str, headers: Iterable[tuple[bytes, bytes]]) -> Span:
        """Start the span of a request that has come in."""
        from opentelemetry.trace import SpanKind

        return Span(self, self._tracer.start_span(name, self.parent(headers), SpanKind.SERVER))

    def start(self, name: str, parent: Context) -> Span:
        """Start a span."""
        return Span(self, self._tracer.start_span(name, parent))

    def inject(self, context: Context, headers: RawHeaders) -> RawHeaders:
        """The headers with this context in place of whatever they told."""
        told: dict[str, str] = {}
        self._propagator.inject(told, context)
        kept = [pair for pair in headers if pair[0].lower() not in TRACE_HEADERS]
        return kept + [(name.encode(), value.encode("latin-1", "ignore")) for name, value in told.items()]

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.to_thread(self._provider.shutdown)


def tracer_of(endpoint: str, *, service: str, name: str) -> Tracer | None:
    """The tracer of a process; None, and nothing imported, where no endpoint is configured. Raises TracingUnusable."""
    return Tracer(endpoint, service=service, name=name) if endpoint else None


def traces_url(endpoint: str) -> str:
    """URL that spans are sent to.

    >>> traces_url("http://collector:4318"), traces_url("http://collector/otlp/v1/traces")
    ('http://collector:4318/v1/traces', 'http://collector/otlp/v1/traces')
    """
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def _saying_once(exporter: SpanExporter, endpoint: str) -> SpanExporter:
    """Let an exporter say once when the collector goes, and once when it is back."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    send, is_lost = exporter.export, False

    def export(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        nonlocal is_lost
        result = send(spans)
        was_lost, is_lost = is_lost, result is not SpanExportResult.SUCCESS
        if is_lost and not was_lost:
            log.warning("spans cannot be sent to %s: they are dropped", endpoint)
        elif was_lost and not is_lost:
            log.info("spans can be sent to %s again", endpoint)
        return result

    exporter.export = export  # type: ignore[method-assign] # a class around it would have to know all of its methods
    return exporter
