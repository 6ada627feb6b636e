"""What a simulated engine is told at start: one frozen struct, its ranges and its help texts.

The command's flags are made from these fields; defaults and ranges stand only here. No parsing of command lines.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from deploy.engine.batching import EngineModel
from deploy.engine.faults import parse_fault


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated engine."""

    host: Annotated[str, Meta(description="Address the engine listens on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of the engine; 0: the system chooses.")] = 0
    models: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(min_length=1, description="Model names it answers to, repeatable; the first one labels its metrics."),
    ] = ("sim",)
    batching: EngineModel = EngineModel()
    seed: Annotated[
        int, Meta(ge=0, le=2**32 - 1, description="Seed of texts and answer lengths: same seed and prompt, same text.")
    ] = 0
    api_key: Annotated[str, Meta(description="Key that /v1 asks for; empty: none.")] = ""
    mean_output_tokens: Annotated[
        float,
        Meta(ge=1, le=1e6, description="Mean answer length when a request sets no limit, tokens (geometric)."),
    ] = 128.0
    tokens_per_chunk: Annotated[
        int, Meta(ge=1, le=1024, description="Tokens of a streamed event; more of them cost less CPU.")
    ] = 1
    fault: Annotated[
        str, Meta(description="Fault from the start: KIND[,count=N][,after_tokens=N][,seconds=S]; empty: none.")
    ] = ""

    def __post_init__(self) -> None:
        """Refuse an unknown fault before anything starts."""
        if self.fault:
            parse_fault(self.fault)
