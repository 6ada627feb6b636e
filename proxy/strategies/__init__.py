"""Strategies: how an instance is chosen. A new strategy is one module and one line here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.strategies.base import Strategy
from proxy.strategies.expected_wait import ExpectedWait
from proxy.strategies.least_load import LeastLoad
from proxy.strategies.predicted_ttft import PredictedTTFT
from proxy.strategies.round_robin import RoundRobin

if TYPE_CHECKING:
    from proxy.config import ProxyConfig

STRATEGIES: Final[dict[str, "Callable[[ProxyConfig], Strategy]"]] = {
    "predicted_ttft": PredictedTTFT,
    "expected_wait": ExpectedWait,
    "least_load": lambda config: LeastLoad(config.weight),
    "round_robin": lambda _: RoundRobin(),
}

__all__ = ["STRATEGIES", "Strategy"]
