"""vLLM: gauges as vLLM 0.32.0 was recorded, and the KV gauge's name from before it was renamed."""

from workers.engines.base import EngineLoad, Gauge, fullest, total

_RUNNING = Gauge("vllm:num_requests_running")
_WAITING = Gauge("vllm:num_requests_waiting")
_KV_USAGE = Gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


class VLLMAdapter:
    """Running and waiting summed over data-parallel engines, KV usage of the fullest."""

    kind = "vllm"

    def speaks(self, page: bytes) -> bool:
        """Whether the page has vLLM's prefix."""
        return b"vllm:" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of a vLLM server."""
        return EngineLoad(
            running=total(_RUNNING.values(page)),
            waiting=total(_WAITING.values(page)),
            kv_usage=fullest(_KV_USAGE.values(page)),
        )
