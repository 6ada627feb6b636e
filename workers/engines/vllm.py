"""vLLM: gauges as vLLM 0.32.0 was recorded, and the KV gauge's name from before it was renamed."""

import re

from workers.engines.base import METRICS, EngineLoad, Gauge, fullest, total

_RUNNING = Gauge("vllm:num_requests_running")
_WAITING = Gauge("vllm:num_requests_waiting")
_KV_USAGE = Gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

_PREFIX_CACHE_HITS = Gauge("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")

#: One info gauge a rank; newer pages say the tokens, all say blocks and their size.
_CACHE_INFO = Gauge("vllm:cache_config_info")


class VLLMAdapter:
    """Running and waiting summed over data-parallel engines, KV usage of the fullest."""

    kind = "vllm"
    owner = "vllm"
    pages: tuple[str, ...] = (METRICS,)
    signals: tuple[str, ...] = ("running", "waiting", "kv_usage")
    tells_usage = False

    def speaks(self, page: bytes) -> bool:
        """Whether the page has vLLM's prefix."""
        return b"vllm:" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of a vLLM server."""
        return EngineLoad(
            running=total(_RUNNING.values(page)),
            waiting=total(_WAITING.values(page)),
            kv_usage=fullest(_KV_USAGE.values(page)),
            kv_capacity_tokens=_kv_capacity_tokens(page),
            prefix_cache_hits=sum(hits) if (hits := _PREFIX_CACHE_HITS.values(page)) else None,
        )


def _kv_capacity_tokens(page: bytes) -> int | None:
    """Tokens that all ranks' caches hold; None where the page does not say.

    >>> _kv_capacity_tokens(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0')
    1600
    """
    ranks = [_rank_capacity(labels) for labels, _ in _CACHE_INFO.samples(page)]
    return total(tokens for tokens in ranks if tokens)


def _rank_capacity(labels: bytes) -> int:
    tokens = _label(labels, b"kv_cache_size_tokens")
    return tokens or _label(labels, b"num_gpu_blocks") * _label(labels, b"block_size")


def _label(labels: bytes, name: bytes) -> int:
    """Whole number of a label, 0 if it is none."""
    found = re.search(rb"(?:^|,)" + name + rb'="(\d{1,15})"', labels)
    return int(found[1]) if found else 0
