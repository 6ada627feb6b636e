"""`least_load`: the layered score."""

from typing import Annotated

import msgspec
from msgspec import Meta


class LeastLoadWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Weight of each signal in the score of `least_load`; 0 leaves a signal out."""

    inflight: Annotated[float, Meta(ge=0, le=1e6, description="Per request accepted and not finished.")] = 1.0
    active_prepare: Annotated[float, Meta(ge=0, le=1e6, description="Per request being prepared.")] = 1.0
    active_ready: Annotated[float, Meta(ge=0, le=1e6, description="Per request being handed to the engine.")] = 1.0
    prepare_queue_depth: Annotated[float, Meta(ge=0, le=1e6, description="Per request waiting to be prepared.")] = 0.25
    ready_queue_depth: Annotated[float, Meta(ge=0, le=1e6, description="Per request waiting for a slot.")] = 0.25
    pending_prefill_count: Annotated[
        float, Meta(ge=0, le=1e6, description="Per request on the engine without a first token.")
    ] = 1.0
    active_decode_count: Annotated[float, Meta(ge=0, le=1e6, description="Per request on the engine that decodes.")] = (
        0.5
    )
    predicted_total_backlog_ms: Annotated[
        float, Meta(ge=0, le=1e6, description="Per millisecond of predicted backlog.")
    ] = 0.001
    qps_1m: Annotated[float, Meta(ge=0, le=1e6, description="Per request a second over the last minute.")] = 0.0
