"""What is measured: cells, the policies of each, and how long. Pure.

A cell is a fleet, a load and a trace. Every policy of a cell serves the same requests at the same times, in blocks.
"""

from typing import Final, Literal

import msgspec

STRATEGIES: Final = ("predicted_ttft", "expected_wait", "least_load", "round_robin")

#: What Forebay is compared with, and whether there are as many of it as there are replicas.
YARDSTICKS: Final = {"direct": False, "fewest_own": True, "fewest_all": False, "all_knowing": False}

LABELS: Final = {
    "direct": "round robin, direct",
    "fewest_own": "fewest in flight, own counts",
    "fewest_all": "fewest in flight, all-seeing",
    "all_knowing": "all-knowing router",
}

REPLICAS: Final = (1, 2, 4, 8)
LOADS: Final = (60, 75, 90)

Fleet = Literal["equal", "unequal"]
Trace = Literal["conv", "code"]


class Policy(msgspec.Struct, frozen=True, order=True):
    """Who chooses: a strategy of Forebay or a yardstick, in so many processes."""

    name: str
    replicas: int = 1

    @property
    def is_forebay(self) -> bool:
        """Whether it is one of the project's strategies."""
        return self.name in STRATEGIES

    @property
    def label(self) -> str:
        """Name for people.

        >>> Policy("fewest_own", 4).label, Policy("predicted_ttft").label, Policy("all_knowing").label
        ('fewest in flight, own counts × 4', 'predicted_ttft × 1', 'all-knowing router')
        """
        name = LABELS.get(self.name, self.name)
        return f"{name} × {self.replicas}" if YARDSTICKS.get(self.name, True) else name


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, and who is measured in it."""

    fleet: Fleet
    load: int
    """Share of the fleet's capacity, per cent."""
    trace: Trace
    policies: tuple[Policy, ...]
    blocks: int
    block_requests: int
    """Requests of a block that count."""
    filling_requests: int = 100
    """First requests of a block, which count for no policy: the fleet is still filling."""
    learning_requests: int = 320
    """Requests from which workers learn their engines' speeds, before the first block."""

    @property
    def requests(self) -> int:
        """Requests that the trace has to have: those of all blocks, or as many as there is to learn from."""
        return max(self.blocks * (self.block_requests + self.filling_requests), self.learning_requests)

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.fleet} engines, {self.load} % load, {self.trace} trace"


def policies(names: tuple[str, ...], replicas: tuple[int, ...]) -> tuple[Policy, ...]:
    """All combinations; what there is only one of comes once.

    >>> [policy.label for policy in policies(("all_knowing", "fewest_own"), (1, 2))][1:]
    ['fewest in flight, own counts × 1', 'fewest in flight, own counts × 2']
    """
    return tuple(Policy(name, count) for name in names for count in (replicas if YARDSTICKS.get(name, True) else (1,)))


_PROMISED: Final = (
    Policy("predicted_ttft", 1),
    Policy("predicted_ttft", 4),
    Policy("fewest_own", 4),
    Policy("fewest_all"),
    Policy("all_knowing"),
)

_FLEETS: Final[tuple[Fleet, Fleet]] = ("equal", "unequal")
_TRACES: Final[tuple[Trace, Trace]] = ("conv", "code")


def preset(name: str) -> list[Cell]:
    """Cells of a preset: `smoke` (seconds), `quick`, `bounds` (what the project promises) or `full` (everything).

    >>> len(preset("quick")), len(preset("full")), preset("bounds")[0].requests
    (2, 12, 5500)
    """
    match name:
        case "smoke":
            few = policies(("predicted_ttft", "fewest_own", "all_knowing"), (2,))
            cell = Cell(
                fleet="unequal",
                load=60,
                trace="code",
                policies=few,
                blocks=1,
                block_requests=20,
                filling_requests=10,
                learning_requests=16,
            )
            return [cell]
        case "quick":
            few = (*_PROMISED, Policy("round_robin", 4), Policy("direct"))
            return [
                Cell(fleet=fleet, load=75, trace="conv", policies=few, blocks=1, block_requests=300)
                for fleet in _FLEETS
            ]
        case "bounds":
            return [
                Cell(fleet=fleet, load=75, trace="conv", policies=_PROMISED, blocks=5, block_requests=1000)
                for fleet in _FLEETS
            ]
        case "full":
            every = policies((*STRATEGIES, *YARDSTICKS), REPLICAS)
            return [
                Cell(fleet=fleet, load=load, trace=trace, policies=every, blocks=2, block_requests=500)
                for fleet in _FLEETS
                for load in LOADS
                for trace in _TRACES
            ]
    raise KeyError(name)
