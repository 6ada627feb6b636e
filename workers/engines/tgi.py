"""Text Generation Inference: gauges as its router sets them; derived from the source of 3.x, not recorded.

A gauge is on the page from the first time it is set, so a server that has not had a request yet says nothing.
"""

from workers.engines.base import METRICS, EngineLoad, Gauge, total

_BATCH_SIZE = Gauge("tgi_batch_current_size")
_QUEUE_SIZE = Gauge("tgi_queue_size")


class TGIAdapter:
    """Requests in the running batch, and those in the queue."""

    kind = "tgi"
    owner = ""
    """It names the model itself as the owner: it is known by its metrics only."""
    pages: tuple[str, ...] = (METRICS,)
    signals: tuple[str, ...] = ("running", "waiting")
    tells_usage = False

    def speaks(self, page: bytes) -> bool:
        """Whether the page has a metric of TGI."""
        return page.startswith(b"tgi_") or b"\ntgi_" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of a TGI server."""
        return EngineLoad(running=total(_BATCH_SIZE.values(page)), waiting=total(_QUEUE_SIZE.values(page)))
