"""Engine adapters: how each kind of inference server tells its load. A new engine is one module and one line here."""

from typing import Final

from workers.engines.base import EngineAdapter, EngineLoad
from workers.engines.openai import OpenAIAdapter
from workers.engines.sglang import SGLangAdapter
from workers.engines.vllm import VLLMAdapter

ADAPTERS: Final[dict[str, EngineAdapter]] = {
    adapter.kind: adapter for adapter in (VLLMAdapter(), SGLangAdapter(), OpenAIAdapter())
}


def recognise(metrics_page: bytes | None) -> EngineAdapter:
    """Adapter for an engine by its metrics page; the plain OpenAI one if the page says nothing known, or is none."""
    if metrics_page is not None:
        for adapter in ADAPTERS.values():
            if adapter.speaks(metrics_page):
                return adapter
    return ADAPTERS["openai"]


__all__ = ["ADAPTERS", "EngineAdapter", "EngineLoad", "recognise"]
