"""SGLang: three pages that tell its load, one after the other in age; derived from its source, not recorded.

- `/v1/loads` (newer) has one entry for each data-parallel rank, with all signals.
- `/metrics` (with --enable-metrics) has them as gauges.
- `/get_load` (older) counts requests only; newer servers still have it, and warn at each reading.
"""

from typing import Any, Final

import msgspec

from workers.engines.base import METRICS, EngineLoad, Gauge, fullest, number, total

#: With --enable-metrics-for-all-schedulers each tensor-parallel part of a rank tells the same; with priorities each of
#: them is told beside the sum.
_RUNNING = Gauge("sglang:num_running_reqs", rank="dp_rank")
_WAITING = Gauge("sglang:num_queue_reqs", rank="dp_rank")
_KV_USAGE = Gauge("sglang:token_usage", rank="dp_rank")
_CAPACITY = Gauge("sglang:max_total_num_tokens", rank="dp_rank")


class _Loads(msgspec.Struct):
    loads: list[dict[str, Any]]


_decode_loads: Final = msgspec.json.Decoder(_Loads).decode
_decode_load: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


class SGLangAdapter:
    """Running and queued summed over data-parallel ranks, token usage of the fullest."""

    kind = "sglang"
    owner = "sglang"
    pages: tuple[str, ...] = ("/v1/loads?include=core", METRICS, "/get_load")
    signals: tuple[str, ...] = ("running", "waiting", "kv_usage")
    tells_usage = False

    def speaks(self, page: bytes) -> bool:
        """Whether the page has SGLang's prefix."""
        return b"sglang:" in page

    def read_load(self, page: bytes) -> EngineLoad:
        """Load of an SGLang server, from whichever page this is."""
        try:
            if page.startswith(b"{"):
                return _of_loads(_decode_loads(page).loads)
            if page.startswith(b"["):
                return _of_get_load(_decode_load(page))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return EngineLoad()
        return EngineLoad(
            running=total(_RUNNING.values(page)),
            waiting=total(_WAITING.values(page)),
            kv_usage=fullest(_KV_USAGE.values(page)),
            kv_capacity_tokens=total(_CAPACITY.values(page)),
        )


def _of_loads(ranks: list[dict[str, Any]]) -> EngineLoad:
    return EngineLoad(
        running=total(_each(ranks, "num_running_reqs")),
        waiting=total(_each(ranks, "num_waiting_reqs")),
        kv_usage=fullest(_each(ranks, "token_usage")),
        kv_capacity_tokens=total(_each(ranks, "max_total_num_tokens")),
    )


def _of_get_load(ranks: list[dict[str, Any]]) -> EngineLoad:
    """There `num_reqs` counts those that run and those that wait.

    >>> _of_get_load([{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2}]).running
    3
    """
    everything, waiting = _each(ranks, "num_reqs"), _each(ranks, "num_waiting_reqs")
    running = [max(0.0, both - waits) for both, waits in zip(everything, waiting, strict=False)]
    return EngineLoad(running=total(running), waiting=total(waiting))


def _each(ranks: list[dict[str, Any]], name: str) -> list[float]:
    """A number of every rank; nothing if one of them does not say it."""
    found = [number(rank.get(name)) for rank in ranks]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []
