"""The prediction error with real processes: a recorded trace at 70 % load, priors wrong by a factor of three.

Simulated engine, queue worker and replica as `forebay` starts them, requests sent by `forebay replay`; the figures
are the worker's own: what it predicted when it took a request, and what came.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from deploy.engine.batching import EngineModel
from deploy.ports import free_ports
from tests.bench.figures import Aim, Figure
from tests.bench.plan import Effort
from tests.bench.stand import ROOT, bus_server, forebay, json_page, process, wait_for
from tests.workers.virtual import TRACES, azure_conversation, capacity_s

LOAD = 0.7

#: First requests, from which the worker learns; they are not counted.
LEARNING = 200

#: What the simulated engine does at speed 1, and a third or three times of it as priors: prefill thought too fast,
#: decode too slow.
TRUE_TOKENS_PER_S, TRUE_STEP_MS, WRONG_BY = 8000.0, 10.0, 3.0

TRACE = TRACES / "AzureLLMInferenceTrace_conv.csv"


def speed_for(requests: int, seconds: float) -> float:
    """Speed at which an engine at LOAD needs `seconds` for the first requests of the trace."""
    return capacity_s(azure_conversation(requests), EngineModel()) / LOAD / seconds


def errors_of(predictions: list[dict[str, Any]]) -> list[float]:
    """|predicted − real| / real of all after the learning ones.

    >>> right, wrong = {"predicted_ttft_s": 1.0, "real_ttft_s": 1.0}, {"predicted_ttft_s": 3.0, "real_ttft_s": 2.0}
    >>> errors_of([right] * LEARNING + [wrong])
    [0.5]
    """
    return [abs(p["predicted_ttft_s"] - p["real_ttft_s"]) / p["real_ttft_s"] for p in predictions[LEARNING:]]


async def replay(url: str, requests: int, seconds: float, report: Path) -> None:
    """Send the trace; RuntimeError if a request was not answered."""
    words = ["deploy.cli", "replay", str(TRACE), "--target", url, "--limit", str(requests)]
    words += ["--rate", f"{(requests - 1) / seconds:.6f}", "--ignore-eos", "--quiet", "--json", str(report)]
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, cwd=ROOT)
    try:
        status = await child.wait()
    except BaseException:
        child.kill()
        raise
    if status:
        raise RuntimeError(f"the replay ended with status {status}: {words}")


async def one_run(effort: Effort) -> dict[str, float]:
    """One replay through fresh processes: median and 90th percentile of the error, the real TTFT, the client's lag."""
    requests, seconds = effort.trace_requests, effort.trace_seconds
    speed = speed_for(requests, seconds)
    (engine_port,) = free_ports(1)
    engine = ["deploy.cli", "engine", "--port", str(engine_port), "--speed", f"{speed:.4f}"]
    priors = ["--prior-prefill-tokens-per-s", f"{TRUE_TOKENS_PER_S * speed * WRONG_BY:.1f}"]
    priors += ["--prior-decode-step-ms", f"{TRUE_STEP_MS / speed * WRONG_BY:.3f}"]
    slots = ["--slots", str(EngineModel().max_num_seqs)]
    url = f"http://127.0.0.1:{engine_port}"
    with tempfile.TemporaryDirectory() as folder, bus_server() as bus, process(engine):
        wait_for(f"{url}/v1/models", b'"id":')
        with forebay(bus.url, url, worker=[*priors, *slots]) as ours:
            report = Path(folder) / "report.json"
            await replay(ours.url, requests, seconds, report)
            page: Any = json_page(f"{ours.worker_admin}/debug/predictions")
            lag_ms = _lag_p99_ms(report)
    errors = sorted(errors_of(page["bench"]))
    real_s = [p["real_ttft_s"] for p in page["bench"][LEARNING:]]
    return {
        "median": 100 * median(errors),
        "p90": 100 * errors[int(len(errors) * 0.9)],
        "ttft": 1000 * median(real_s),
        "lag": lag_ms,
        "count": len(errors),
    }


def _lag_p99_ms(report: Path) -> float:
    return float(msgspec.json.decode(report.read_bytes())["lag_ms"]["p99"])


async def measure(effort: Effort) -> list[Figure]:
    """Several replays, one after the other."""
    runs = [await one_run(effort) for _ in range(effort.trace_runs)]
    rows: tuple[tuple[str, str, str, Aim | None], ...] = (
        ("median", f"median error after {LEARNING} requests", "%", Aim(35, of="value")),
        ("p90", "90th percentile of it", "%", None),
        ("count", "requests counted", "", None),
        ("ttft", "median real TTFT", "ms", None),
        ("lag", "lag of the client, p99", "ms", None),
    )
    return [
        Figure(part="prediction of TTFT", name=name, unit=unit, ours=[run[key] for run in runs], aim=aim)
        for key, name, unit, aim in rows
    ]
