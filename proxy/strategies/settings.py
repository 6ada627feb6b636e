"""Settings of the strategies that count in seconds; they are options of the proxy, with these ranges and defaults."""

from typing import Annotated

import msgspec
from msgspec import Meta


class CostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `expected_wait` and `predicted_ttft`."""

    kv_pressure_weight: Annotated[
        float, Meta(ge=0, le=3600, description="Cost of a KV cache that is half full, seconds.")
    ] = 0.15
    kv_clamp: Annotated[
        float, Meta(ge=0, lt=1, description="Share of the KV cache above which its cost grows no further.")
    ] = 0.999
    default_throughput: Annotated[
        float, Meta(gt=0, le=1e9, description="Prefill speed of an engine of which nobody knows any, tokens/s.")
    ] = 2000.0
    mean_prefill_tokens: Annotated[
        float, Meta(gt=0, le=1e9, description="Tokens of a waiting request where only their number is known.")
    ] = 1024.0
    decode_weight: Annotated[
        float, Meta(ge=0, le=100, description="predicted_ttft: weight of the request's own decode time.")
    ] = 0.05
    externality_weight: Annotated[
        float, Meta(ge=0, le=100, description="predicted_ttft: weight of the delay to requests already there.")
    ] = 0.2
