"""Policies by the name they have in tables and on the command line. Values only."""

from typing import Final

from proxy.config import ProxyConfig
from tests.routing.replicas import Mode

#: What weights of a request's own decode and of the delay to others are worth, as in `deploy/docs/tuning.md`.
WEIGHTS: Final = {
    f"weights-{own}-{others}": Mode(
        strategy="predicted_ttft", config=ProxyConfig(decode_weight=own, externality_weight=others)
    )
    for own, others in ((0, 0), (0, 0.2), (0.05, 0.1), (0.05, 0.4), (0.1, 0.2), (0.3, 0.5), (1, 1))
}

#: The project's own strategies, and ablations of the one that predicts.
MODES: Final = {
    "least_load": Mode(strategy="least_load"),
    "expected_wait": Mode(strategy="expected_wait"),
    "predicted_ttft": Mode(strategy="predicted_ttft"),
    "no-reservations": Mode(strategy="predicted_ttft", sharing="none"),
    "own-reservations": Mode(strategy="predicted_ttft", sharing="own"),
    "snapshots-100ms": Mode(strategy="predicted_ttft", snapshot_s=0.1),
    "snapshots-1s": Mode(strategy="predicted_ttft", snapshot_s=1.0),
    "whole-pool": Mode(strategy="predicted_ttft", sample=1_000_000),
    "sample-64": Mode(strategy="predicted_ttft", sample=64),
    "sample-32": Mode(strategy="predicted_ttft", sample=32),
    "sample-16": Mode(strategy="predicted_ttft", sample=16),
    "rough-tokens": Mode(strategy="predicted_ttft", token_noise=0.2),
    **WEIGHTS,
}

#: What they are compared with; `tests.routing.rivals`.
RIVALS: Final = ("round_robin", "fewest-own", "fewest-all-seeing", "all-knowing")

#: What a choice reads of a large pool; `tests.routing.sampling`.
SAMPLES: Final = ("whole-pool", "sample-64", "sample-32", "sample-16")

POLICIES: Final = (*RIVALS, *MODES)
