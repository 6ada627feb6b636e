import logging
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from bus.hop.tracing import Tracer, TracingUnusable, _saying_once, tracer_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
TOLD = [(b"Traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()), (b"tracestate", b"vendor=1"), (b"X-A", b"b")]


@pytest.fixture
def spans():
    """Give an exporter that keeps what it gets."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans):
    """Give a tracer that exports at once."""
    return Tracer("", service="test", name="one", exporter=spans)


def test_a_request_belongs_to_the_trace_that_its_headers_name(tracer, spans):
    """And those that it makes belong to it: the headers name its span, the vendors' part stays."""
    span = tracer.request("request", TOLD)
    headers = dict(span.headers(TOLD))
    span.end()
    (made,) = spans.get_finished_spans()
    assert f"{made.context.trace_id:032x}" == TRACE
    assert made.parent is not None
    assert f"{made.parent.span_id:016x}" == "b7ad6b7169203331"
    assert made.kind is SpanKind.SERVER
    assert headers == {
        b"X-A": b"b",
        b"traceparent": f"00-{TRACE}-{made.context.span_id:016x}-01".encode(),
        b"tracestate": b"vendor=1",
    }


@pytest.mark.parametrize("told", [b"", b"rubbish", b"\xff", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01"])
def test_a_request_without_a_trace_that_can_be_read_begins_one(tracer, spans, told):
    """What the client said is not passed on."""
    span = tracer.request("request", [(b"traceparent", told)])
    headers = span.headers([(b"traceparent", told)])
    span.end()
    (made,) = spans.get_finished_spans()
    assert made.parent is None
    ((name, value),) = headers
    assert name == b"traceparent"
    assert value.startswith(f"00-{made.context.trace_id:032x}-{made.context.span_id:016x}-".encode())


def test_a_trace_that_is_not_sampled_stays_so(tracer, spans):
    """Nothing is exported, and those behind are told."""
    span = tracer.request("request", [(b"traceparent", f"00-{TRACE}-b7ad6b7169203331-00".encode())])
    assert dict(span.headers([]))[b"traceparent"].endswith(b"-00")
    span.end()
    assert spans.get_finished_spans() == ()


def test_a_part_ends_with_its_block_and_says_what_it_is(tracer, spans):
    """Its parent is the request; what is not known is left out."""
    span = tracer.request("request", TOLD)
    with span.child("select") as part:
        part.set(instance="a", predicted_ttft_s=None, attempt=2)
    span.end()
    part, whole = spans.get_finished_spans()
    assert (part.name, part.parent.span_id) == ("select", whole.context.span_id)
    assert dict(part.attributes) == {"forebay.instance": "a", "forebay.attempt": 2}
    assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time
    assert part.resource.attributes["service.name"] == "test"


def test_a_part_that_fails_is_an_error_by_its_type_only(tracer, spans):
    """A message may quote a prompt."""
    span = tracer.request("request", [])
    with pytest.raises(ValueError, match="a secret"), span.child("select"):
        raise ValueError("a secret")
    (part,) = spans.get_finished_spans()
    assert part.status.description == "ValueError"
    assert "secret" not in part.to_json()


def test_without_an_endpoint_nothing_is_imported():
    """Neither by the processes' modules, nor by asking for a tracer; redis-py looks for the metrics part by itself."""
    code = (
        "import sys, proxy.app, workers.process\n"
        "from bus.hop.tracing import tracer_of\n"
        "assert tracer_of('', service='s', name='n') is None\n"
        "assert not set(sys.modules) & {'opentelemetry.sdk.trace', 'opentelemetry.exporter.otlp'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_endpoint_without_the_packages_is_one_clear_line(monkeypatch):
    """It names the option and what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingUnusable, match=r"--otlp-endpoint needs .* pip install 'forebay\[tracing\]'"):
        tracer_of("http://127.0.0.1:4318", service="s", name="n")


def test_a_collector_that_goes_is_said_once_and_once_when_it_is_back(spans, caplog):
    """However many batches are lost between."""
    results = iter([SpanExportResult.SUCCESS, *[SpanExportResult.FAILURE] * 3, *[SpanExportResult.SUCCESS] * 2])
    spans.export = lambda _: next(results)
    sender = _saying_once(spans, "http://collector")
    with caplog.at_level(logging.INFO, logger="forebay.tracing"):
        for _ in range(6):
            sender.export([])
    assert [record.getMessage() for record in caplog.records] == [
        "spans cannot be sent to http://collector: they are dropped",
        "spans can be sent to http://collector again",
    ]
