"""llama.cpp's server, started with --metrics: gauges as build 11434 was recorded. It has none of its KV cache.

With an API key its metrics want it, and with more streams than HTTP threads they do not come in time: both only make
its load unknown. The last event of its streams has `timings`, from which the usage is read; asked for a usage it would
put them into that event, which a client that did not ask does not get.
"""

from workers.engines.base import METRICS, EngineLoad, Gauge, total

_PROCESSING = Gauge("llamacpp:requests_processing")
_DEFERRED = Gauge("llamacpp:requests_deferred")


class LlamaCppAdapter:
    """Requests in its slots, and those that wait for one."""

    kind = "llamacpp"
    owner = "llamacpp"
    pages: tuple[str, ...] = (METRICS,)
    signals: tuple[str, ...] = ("running", "waiting")
    tells_usage = True

    def speaks(self, page: bytes) -> bool:
        """Whether the page has llama.cpp's prefix."""
        return b"llamacpp:" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of a llama.cpp server."""
        return EngineLoad(running=total(_PROCESSING.values(page)), waiting=total(_DEFERRED.values(page)))
