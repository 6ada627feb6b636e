"""Engine adapters: how each kind of inference server tells its load. A new engine is one module and one line here."""

from typing import Final

from workers.engines.base import METRICS, EngineAdapter, EngineLoad
from workers.engines.llamacpp import LlamaCppAdapter
from workers.engines.openai import OpenAIAdapter
from workers.engines.sglang import SGLangAdapter
from workers.engines.tgi import TGIAdapter
from workers.engines.vllm import VLLMAdapter

_PLAIN: Final = OpenAIAdapter()

ADAPTERS: Final[dict[str, EngineAdapter]] = {
    adapter.kind: adapter for adapter in (VLLMAdapter(), SGLangAdapter(), LlamaCppAdapter(), TGIAdapter(), _PLAIN)
}


def recognise(metrics_page: bytes | None, owner: str = "") -> EngineAdapter:
    """Adapter for an engine by its metrics page, else by the `owned_by` of its models; the plain one for all others."""
    for adapter in ADAPTERS.values():
        if metrics_page is not None and adapter.speaks(metrics_page):
            return adapter
    return next((adapter for adapter in ADAPTERS.values() if owner and adapter.owner == owner), _PLAIN)


__all__ = ["ADAPTERS", "METRICS", "EngineAdapter", "EngineLoad", "recognise"]
