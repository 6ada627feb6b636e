"""How a replay goes while it runs: one JSON line a second for other programs. No clock but the times given."""

from collections import deque
from typing import Final

import msgspec

from deploy.replay.outcome import Outcome
from deploy.replay.report import Tally, percentiles

WINDOW_S: Final = 10.0
"""Seconds that the percentiles of a progress line look back."""


class ProgressLine(msgspec.Struct, frozen=True):
    """One line of the progress file. Counts are totals; times are of the last 10 s, null when nothing ended in them."""

    t: float
    """Seconds since the start of the replay."""
    sent: int
    done: int
    """Answered in full; `sent - done - errors` are in flight."""
    errors: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    lag_ms: float | None
    """p99 of how late requests were sent."""


class Window:
    """The TTFT of the answers, and the lag of the requests, of the last ten seconds."""

    def __init__(self) -> None:
        self._ttft_ms: deque[tuple[float, float]] = deque()
        self._lag_ms: deque[tuple[float, float]] = deque()

    def add_sent(self, now_s: float, lag_s: float) -> None:
        """A request was sent at `now_s`."""
        self._lag_ms.append((now_s, lag_s * 1000))

    def add(self, now_s: float, outcome: Outcome) -> None:
        """A request ended at `now_s`; failures have no TTFT that means anything."""
        if outcome.failure is None and outcome.ttft_s is not None:
            self._ttft_ms.append((now_s, outcome.ttft_s * 1000))

    def line(self, now_s: float, tally: Tally) -> ProgressLine:
        """The progress line of this moment, in seconds since the start."""
        ttft = percentiles(_recent(self._ttft_ms, now_s))
        lag = percentiles(_recent(self._lag_ms, now_s))
        return ProgressLine(
            t=round(now_s, 3),
            sent=tally.sent,
            done=tally.answered,
            errors=tally.failed,
            ttft_p50_ms=None if ttft is None else round(ttft.p50, 3),
            ttft_p99_ms=None if ttft is None else round(ttft.p99, 3),
            lag_ms=None if lag is None else round(lag.p99, 3),
        )


def _recent(samples: deque[tuple[float, float]], now_s: float) -> list[float]:
    while samples and samples[0][0] < now_s - WINDOW_S:
        samples.popleft()
    return [value for _, value in samples]
