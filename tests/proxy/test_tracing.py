"""The spans of a replica's requests: the request, and each choice that is made for it."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bus.hop.tracing import Tracer
from bus.key_limits import Limits
from proxy.keys import line_of
from tests.hop.scripted import Asked, Peer, until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
ANSWER = b'{"choices":[]}'


@pytest.fixture
def spans(monkeypatch):
    """Let replicas trace into a list."""
    exporter = InMemorySpanExporter()
    tracer = Tracer("", service="forebay-proxy", name="p", exporter=exporter)
    monkeypatch.setattr("proxy.app.tracer_of", lambda *_, **__: tracer)
    return exporter


def by_name(exporter: InMemorySpanExporter, name: str) -> list[object]:
    """The spans of a name."""
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_request_is_one_span_and_its_choice_another(fleet, spans):
    """Both of the client's trace; the worker is told the request's span in place of the client's."""
    worker = await fleet.worker("a", lambda peer, _: peer.answer(ANSWER))
    await fleet.start()
    caller = await fleet.ask(traceparent=PARENT, tracestate="vendor=1", x_request_id="abc")
    assert await caller.answer() == (200, ANSWER)
    await until(lambda: by_name(spans, "request"))
    (request,), (select,) = by_name(spans, "request"), by_name(spans, "select")
    assert {f"{span.context.trace_id:032x}" for span in (request, select)} == {TRACE}
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert select.parent.span_id == request.context.span_id
    assert (select.attributes["forebay.instance"], select.attributes["forebay.attempt"]) == ("a", 1)
    told = {name.removeprefix("forebay."): value for name, value in request.attributes.items()}
    expected = {"request": "abc", "model": "tiny", "instance": "a", "tries": 1, "outcome": "answered", "status": 200}
    assert told == expected
    (asked,) = worker.asked
    assert asked.headers["traceparent"] == f"00-{TRACE}-{request.context.span_id:016x}-01"
    assert asked.headers["tracestate"] == "vendor=1"
    assert [name.lower() for name, _ in asked.pairs].count("traceparent") == 1


async def test_a_request_that_is_tried_again_has_a_choice_for_each_try(fleet, spans):
    """In their order."""
    refused = "x-forebay-verdict: refused\r\n"
    await fleet.worker("a", lambda peer, _: peer.answer(b"{}", status="503 Busy", more=refused), inflight=0)
    await fleet.worker("b", lambda peer, _: peer.answer(ANSWER), inflight=5)
    await fleet.start()
    assert (await (await fleet.ask()).answer())[0] == 200
    await until(lambda: by_name(spans, "request"))
    chosen = [
        (span.attributes["forebay.instance"], span.attributes["forebay.attempt"]) for span in by_name(spans, "select")
    ]
    assert chosen == [("a", 1), ("b", 2)]


async def test_a_client_that_leaves_ends_its_span(fleet, spans):
    """As cancelled."""

    async def waits(peer: Peer, _: Asked) -> None:
        await peer.gone()

    worker = await fleet.worker("a", waits)
    await fleet.start()
    caller = await fleet.ask()
    await until(lambda: worker.asked)
    caller.leave()
    await until(lambda: by_name(spans, "request"))
    (request,) = by_name(spans, "request")
    assert (request.attributes["forebay.outcome"], request.status.description) == ("cancelled", "cancelled")


async def test_a_request_for_a_model_that_nobody_serves_is_rejected_in_its_span_without_its_name(fleet, spans):
    """What a client writes as a model is text of a client."""
    await fleet.worker("a", lambda peer, _: peer.answer(ANSWER))
    await fleet.start()
    assert (await (await fleet.ask(b'{"model":"a secret"}')).answer())[0] == 404
    await until(lambda: by_name(spans, "request"))
    (request,) = by_name(spans, "request")
    assert request.attributes["forebay.status"] == 404
    assert all("secret" not in span.to_json() for span in spans.get_finished_spans())


async def test_who_is_not_let_in_has_no_span(fleet, spans, tmp_path):
    """A stranger's `traceparent` may say that all of it is to be kept."""
    (tmp_path / "keys").write_text(line_of("a", "secret-a", Limits()))
    await fleet.worker("a", lambda peer, _: peer.answer(ANSWER))
    await fleet.start(api_keys=str(tmp_path / "keys"))
    assert (await (await fleet.ask(traceparent=PARENT)).answer())[0] == 401
    assert (await (await fleet.ask(authorization="Bearer secret-a")).answer())[0] == 200
    await until(lambda: len(by_name(spans, "request")) == 1)


async def test_without_tracing_the_headers_of_a_trace_pass_as_they_are(fleet):
    """The gateway is no part of the trace, and does not break it."""
    worker = await fleet.worker("a", lambda peer, _: peer.answer(ANSWER))
    await fleet.start()
    assert (await (await fleet.ask(traceparent=PARENT, tracestate="vendor=1")).answer())[0] == 200
    (asked,) = worker.asked
    assert (asked.headers["traceparent"], asked.headers["tracestate"]) == (PARENT, "vendor=1")
