"""Traces of real processes, as a collector gets them: OTLP over HTTP to a tiny receiver of our own."""

import gzip
import http.server
import threading
from collections.abc import Iterator

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes.fleet import Fleet, until

pytestmark = pytest.mark.processes

TRACE = "0af7651916cd43dd8448eb211c80319c"
HELLO = [{"role": "user", "content": "What does a forebay do?"}]


class Collector:
    """Keeps the spans that it is sent, each with the service that it is from."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, object]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Take one batch."""
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, batch: ExportTraceServiceRequest) -> None:
        """Keep the spans of a batch."""
        for resource in batch.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(named["service.name"], span) for span in scope.spans]

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Give a collector on a port of its own."""
    one = Collector()
    yield one
    one.close()


def test_a_request_is_one_trace_through_proxy_and_worker(collector, tmp_path):
    """The client's trace has request and select from the proxy, queue, prefill and decode from the worker, in order."""
    where = ("--otlp-endpoint", collector.url)
    with Fleet(tmp_path) as fleet:
        fleet.start(engines=1, replicas=1, worker=where, replica=where)
        with openai.OpenAI(base_url=f"{fleet.replicas[0].url}/v1", api_key="none", max_retries=0) as client:
            parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            request = {"model": "sim", "messages": HELLO, "max_tokens": 8, "stream": True}
            assert list(client.chat.completions.create(**request, extra_headers=parent))
        until(lambda: len(collector.spans) >= 5, collector.spans)
    ours = [(service, span) for service, span in collector.spans if span.trace_id.hex() == TRACE]
    named = {span.name: span for _, span in ours}
    assert sorted((service, span.name) for service, span in ours) == [
        ("forebay-proxy", "request"),
        ("forebay-proxy", "select"),
        ("forebay-worker", "decode"),
        ("forebay-worker", "prefill"),
        ("forebay-worker", "queue"),
    ]
    assert named["request"].parent_span_id.hex() == "b7ad6b7169203331"
    assert {named[name].parent_span_id for name in ("select", "queue", "prefill", "decode")} == {
        named["request"].span_id
    }
    begins = [named[name].start_time_unix_nano for name in ("request", "select", "queue", "prefill", "decode")]
    assert begins == sorted(begins)


def test_a_collector_that_is_not_there_costs_nothing_but_its_spans(tmp_path):
    """Requests are answered, one line says that spans are dropped, and the processes end in time."""
    where = ("--otlp-endpoint", "http://127.0.0.1:9")
    with Fleet(tmp_path) as fleet:
        fleet.start(engines=1, replicas=1, worker=where, replica=where)
        replica = fleet.replicas[0]
        with openai.OpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0) as client:
            assert client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2).choices
        replica.said("spans cannot be sent to http://127.0.0.1:9: they are dropped")
        replica.process.terminate()
        assert replica.status() == 0
        assert replica.text.count("spans cannot be sent") == 1
        assert "Traceback" not in replica.text
