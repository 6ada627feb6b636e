"""The spans of requests that pass a worker: one for each stage, whatever way they end."""

from itertools import pairwise

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bus.hop.tracing import Tracer
from tests.hop.scripted import Asked, Peer, until

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3,"total_tokens":23}}\n\n'
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3}}'
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    """Let workers trace into a list."""
    exporter = InMemorySpanExporter()
    tracer = Tracer("", service="forebay-worker", name="a", exporter=exporter)
    monkeypatch.setattr("workers.process.tracer_of", lambda *_, **__: tracer)
    return exporter


def streams(*events: bytes):
    """An engine that answers with these events."""

    async def respond(peer: Peer, _: Asked) -> None:
        peer.start_stream(*events, b"")

    return respond


async def waits(peer: Peer, _: Asked) -> None:
    """An engine that takes a request and says nothing."""
    await peer.gone()


def told(exporter: InMemorySpanExporter) -> list[tuple[str, object, str | None]]:
    """Name, outcome and fault of each span."""
    made = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    return [(span.name, span.attributes.get("forebay.outcome"), span.status.description) for span in made]


async def test_a_stream_is_queued_prefilled_and_decoded(site, spans):
    """Three spans, one after the other, of the trace that the request names; the engine is told the same."""
    one = await site(streams(EVENT, USAGE, b"data: [DONE]\n\n"))
    assert (await (await one.ask(traceparent=PARENT, tracestate="vendor=1")).answer())[0] == 200
    await until(lambda: len(told(spans)) == 3)
    assert told(spans) == [("queue", None, None), ("prefill", None, None), ("decode", "answered", None)]
    made = spans.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in made} == {TRACE}
    assert {f"{span.parent.span_id:016x}" for span in made} == {"b7ad6b7169203331"}
    assert [before.end_time <= after.start_time for before, after in pairwise(made)] == [True, True]
    assert made[2].attributes["forebay.output_tokens"] == 3
    assert {span.attributes["forebay.prompt_tokens"] for span in made} == {10}
    (asked,) = one.posts
    assert (asked.headers["traceparent"], asked.headers["tracestate"]) == (PARENT, "vendor=1")


async def test_a_plain_answer_does_not_tell_prefill_from_decode(site, spans):
    """Nobody saw its first token, and the span says so."""
    one = await site(lambda peer, _: peer.answer(ANSWER))
    assert (await (await one.ask(is_stream=False, traceparent=PARENT)).answer())[0] == 200
    await until(lambda: len(told(spans)) == 2)
    assert told(spans) == [("queue", None, None), ("prefill and decode", "answered", None)]


async def test_a_request_that_waits_for_a_slot_when_its_client_leaves_was_queued_only(site, spans):
    """Its span ends as cancelled; the one that holds the slot ends in its prefill."""
    one = await site(waits, slots=1)
    first = await one.ask(traceparent=PARENT)
    await one.reaches(PREFILL=1)
    second = await one.ask(traceparent=PARENT)
    await one.reaches(PREFILL=1, READY_QUEUE=1)
    second.leave()
    await until(lambda: len(told(spans)) == 2)
    first.leave()
    await until(lambda: len(told(spans)) == 3)
    cancelled = ("cancelled", "cancelled")
    assert sorted(told(spans), key=str) == sorted(
        [("queue", None, None), ("queue", *cancelled), ("prefill", *cancelled)], key=str
    )


async def test_an_engine_that_breaks_off_makes_the_span_an_error(site, spans):
    """In mid-stream it is the decode that failed."""

    async def breaks(peer: Peer, _: Asked) -> None:
        peer.start_stream(EVENT)
        await peer.drain()
        peer.reset()

    one = await site(breaks)
    caller = await one.ask(traceparent=PARENT)
    await caller.head()
    await until(lambda: len(told(spans)) == 3)
    assert told(spans)[2] == ("decode", "failed", "failed")


async def test_a_request_without_a_trace_is_traced_all_the_same(site, spans):
    """Each of its stages; two requests of one id are told apart."""
    one = await site(streams(EVENT, b"data: [DONE]\n\n"))
    for _ in range(2):
        assert (await (await one.ask(x_request_id="same")).answer())[0] == 200
    await until(lambda: len(told(spans)) == 6)
    assert [name for name, _, _ in told(spans)] == ["queue", "prefill", "decode"] * 2
