"""SGLang, started with --enable-metrics. Names as SGLang documents them; derived, not recorded."""

from workers.engines.base import EngineLoad, Gauge, fullest, total

_RUNNING = Gauge("sglang:num_running_reqs")
_WAITING = Gauge("sglang:num_queue_reqs")
_KV_USAGE = Gauge("sglang:token_usage")


class SGLangAdapter:
    """Running and queued summed over data-parallel ranks, token usage of the fullest."""

    kind = "sglang"

    def speaks(self, page: bytes) -> bool:
        """Whether the page has SGLang's prefix."""
        return b"sglang:" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of an SGLang server."""
        return EngineLoad(
            running=total(_RUNNING.values(page)),
            waiting=total(_WAITING.values(page)),
            kv_usage=fullest(_KV_USAGE.values(page)),
        )
