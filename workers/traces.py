"""The spans of a worker's requests, one for each stage: queue, prefill, decode. Stages come from the ledger's events.

Their parent is what the request's headers name, the proxy's span as a rule, and the engine is told the same: it has
both, prefill and decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workers.timeline import Request, Stage

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from bus.hop.tracing import Span, Tracer

#: Outcomes that are no fault.
_GOOD = frozenset({"answered", "rejected"})


class Traces:
    """The span that each request of an instance is in now."""

    def __init__(self, tracer: Tracer, instance: str) -> None:
        self._tracer = tracer
        self._instance = instance
        self._now: dict[str, tuple[Context, Span]] = {}

    def begin(self, request: Request, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """A request was accepted: it queues."""
        self._enter(request, "queue", self._tracer.parent(headers))

    def advance(self, request: Request, stage: Stage) -> None:
        """A request has reached a stage. Where one answer comes in one piece nobody can tell prefill from decode."""
        if request.id not in self._now or stage not in {Stage.DISPATCHING, Stage.DECODE}:
            return
        parent, span = self._now[request.id]
        span.end()
        if stage is Stage.DECODE:
            self._enter(request, "decode", parent)
        else:
            self._enter(request, "prefill" if request.work.is_stream else "prefill and decode", parent)

    def finish(self, request: Request, outcome: str, output_tokens: int | None) -> None:
        """A request has left, whatever the way."""
        now = self._now.pop(request.id, None)
        if now is not None:
            now[1].set(outcome=outcome, output_tokens=output_tokens)
            now[1].end("" if outcome in _GOOD else outcome)

    def _enter(self, request: Request, name: str, parent: Context) -> None:
        span = self._tracer.start(name, parent)
        span.set(instance=self._instance, request=request.id, prompt_tokens=request.work.prompt_tokens)
        self._now[request.id] = (parent, span)
