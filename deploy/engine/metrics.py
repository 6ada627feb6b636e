"""The /metrics page: vLLM 0.32.0's names and label sets, as far as a gateway reads them. Pure: numbers in, text out."""

from collections.abc import Iterator
from typing import Final

from deploy.engine.batching import Batcher
from deploy.engine.exchange import Choice

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
_KV_GAUGE: Final = "vllm:kv_cache_usage_perc"
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")


class Counters:
    """What an engine has done since its start, apart from what its batcher counts itself."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        # vLLM counts no client that left under `abort` (recorded), so that one stays 0 here as well.
        self.succeeded = dict.fromkeys(FINISHED_REASONS, 0)
        self.rejected = 0
        self.aborted = 0
        self.steps = 0
        self.slip_s = 0.0


def page(batcher: Batcher[Choice], counters: Counters, model_name: str, *, has_kv_gauge: bool = True) -> str:
    """The text of the page; samples end with a newline each."""
    lines = _lines(batcher, counters, model_name)
    return "\n".join(line for line in lines if has_kv_gauge or _KV_GAUGE not in line) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lines(batcher: Batcher[Choice], counters: Counters, model_name: str) -> Iterator[str]:
    name = f'model_name="{_escaped(model_name)}"'
    labels = f'engine="0",{name}'
    waiting = float(batcher.waiting)
    yield from _family("num_requests_running", "gauge", "Number of requests in model execution batches.")
    yield f"vllm:num_requests_running{{{labels}}} {float(batcher.running)}"
    yield from _family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
    yield f"vllm:num_requests_waiting{{{labels}}} {waiting}"
    yield from _family("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {waiting}'
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0'
    yield from _family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.")
    yield f"vllm:kv_cache_usage_perc{{{labels}}} {batcher.kv_usage}"
    yield from _family("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.")
    yield f"vllm:num_preemptions_total{{{labels}}} {float(batcher.preemptions)}"
    yield from _family("prompt_tokens_total", "counter", "Number of prefill tokens processed.")
    yield f"vllm:prompt_tokens_total{{{labels}}} {float(counters.prompt_tokens)}"
    yield from _family("generation_tokens_total", "counter", "Number of generation tokens processed.")
    yield f"vllm:generation_tokens_total{{{labels}}} {float(counters.generation_tokens)}"
    yield from _family("request_success_total", "counter", "Count of successfully processed requests.")
    for reason, count in counters.succeeded.items():
        yield f'vllm:request_success_total{{engine="0",finished_reason="{reason}",{name}}} {float(count)}'
    yield from _family("admission_rejections_total", "counter", "Number of admission attempts rejected, by reason.")
    yield f'vllm:admission_rejections_total{{{name},reason="max_num_queued_reqs"}} {float(counters.rejected)}'
    yield f'vllm:admission_rejections_total{{{name},reason="max_num_queued_tokens"}} 0.0'
    yield from _family("request_queue_time_seconds", "histogram", "Time spent in WAITING phase for request.")
    yield f'vllm:request_queue_time_seconds_bucket{{engine="0",le="+Inf",{name}}} {float(batcher.admissions)}'
    yield f"vllm:request_queue_time_seconds_count{{{labels}}} {float(batcher.admissions)}"
    yield f"vllm:request_queue_time_seconds_sum{{{labels}}} {batcher.queued_s}"
    yield from _family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    yield _cache_config(batcher)
    yield from _simulation(counters, name)


def _family(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"


def _cache_config(batcher: Batcher[Choice]) -> str:
    model = batcher.model
    return (
        f'vllm:cache_config_info{{block_size="{model.kv_block_tokens}",cache_dtype="auto",'
        f'enable_prefix_caching="False",engine="0",gpu_memory_utilization="0.92",'
        f'kv_cache_size_tokens="{model.kv_blocks * model.kv_block_tokens}",num_gpu_blocks="{model.kv_blocks}"}} 1.0'
    )


def _simulation(counters: Counters, name: str) -> Iterator[str]:
    """What only a simulated engine can say; a benchmark checks with it that the engine kept its own time."""
    for metric, text, value in (
        ("aborted_requests_total", "Requests dropped because their client left.", float(counters.aborted)),
        ("steps_total", "Engine steps.", float(counters.steps)),
        ("schedule_slip_seconds_total", "Time by which the machine, not the model, delayed steps.", counters.slip_s),
    ):
        yield f"# HELP forebay_sim_{metric} {text}"
        yield f"# TYPE forebay_sim_{metric} counter"
        yield f"forebay_sim_{metric}{{{name}}} {value}"
