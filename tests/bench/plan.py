"""How much is measured: a value that every part is given."""

import msgspec


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Repetitions and lengths."""

    repeat: int = 5
    """Pairs of runs; the median is told."""
    seconds: float = 2.0
    """Length of one run of requests."""
    stream_seconds: float = 3.0
    """Length of one measured stretch of running streams."""
    flood_chunks: int = 1000
    """Chunks of each stream that is sent as fast as it goes."""
    choices: int = 100
    """Selections timed at each pool size and repetition."""
    trace_requests: int = 500
    """Requests of the trace for the prediction error."""
    trace_runs: int = 3
    trace_seconds: float = 85.0
    """Length of one replay of the trace."""


QUICK = Effort(
    repeat=2,
    seconds=0.7,
    stream_seconds=1.0,
    flood_chunks=300,
    choices=20,
    trace_requests=300,
    trace_runs=1,
    trace_seconds=45.0,
)
