"""Terms that several strategies share, each a cost in seconds. No I/O, no clock."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from bus.record import TYPICAL_PROMPT_TOKENS

#: k / (1 - k) grows without bound; beyond this share the barrier stays where it is.
DEFAULT_KV_CLAMP = 0.999

#: Slower than a token in a quarter of an hour is not measured, and its inverse may not be finite; tokens/s.
LEAST_SPEED: Final = 0.001


def kv_barrier_s(kv_usage: float, *, weight_s: float, clamp: float = DEFAULT_KV_CLAMP) -> float:
    """Expected cost in seconds of placing work on a cache this full, in [0, weight_s * clamp / (1 - clamp)].

    barrier = weight_s * k / (1 - k), k = kv_usage clamped to [0, clamp]   (M/M/1 occupancy)

    >>> kv_barrier_s(0.5, weight_s=0.15)
    0.15
    >>> kv_barrier_s(2.0, weight_s=0.15) == kv_barrier_s(0.999, weight_s=0.15)
    True
    """
    k = min(max(kv_usage, 0.0), clamp)
    return weight_s * k / (1 - k)


def kv_barrier_slope_s(kv_usage: float, *, weight_s: float, clamp: float = DEFAULT_KV_CLAMP) -> float:
    """Derivative of the barrier by the share in use: seconds for the whole cache, 0 where it is clamped.

    >>> kv_barrier_slope_s(0.5, weight_s=0.15)
    0.6
    """
    if not 0 <= kv_usage < clamp:
        return 0.0
    return weight_s / (1 - kv_usage) ** 2


def known_or_median(values: Sequence[float | None], default: float) -> list[float]:
    """Each value, where it is unknown or no speed at all the median of those known, where none is the default.

    >>> known_or_median([4000.0, None, 8000.0], 2000.0), known_or_median([None], 2000.0)
    ([4000.0, 6000.0, 8000.0], [2000.0])
    """
    known = [value for value in values if value is not None and value >= LEAST_SPEED]
    fallback = median(known) if known else default
    return [fallback if value is None or value < LEAST_SPEED else value for value in values]


def prefill_slope_s(tokens_per_s: float, fixed_s: float) -> float:
    """Seconds a further prompt token takes, where a typical prompt is prefilled at `tokens_per_s`, at least 0.

    A record gives the speed for TYPICAL_PROMPT_TOKENS, fixed cost included: speed = n / (fixed + n * slope).

    >>> round(prefill_slope_s(1024 / 0.2, 0.0976), 9)
    0.0001
    """
    return max(0.0, 1 / tokens_per_s - fixed_s / TYPICAL_PROMPT_TOKENS)
