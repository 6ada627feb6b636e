"""`forebay replay`: a request trace sent to a server in real time or faster, and what came back as a report."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TextIO

import click
import msgspec
import uvloop
from rich.console import Console

from bus.errors import ForebayError
from deploy.cluster.interrupts import unless_stopped
from deploy.replay.bar import Bar
from deploy.replay.client import Target
from deploy.replay.progress import ProgressLine
from deploy.replay.prompts import PromptMaker
from deploy.replay.report import DEFAULT_LAG_BOUND_MS, Report
from deploy.replay.report_view import plain_text, render
from deploy.replay.run import first_model
from deploy.replay.run import replay as run_replay
from deploy.replay.schedule import Plan, schedule
from deploy.replay.traces import SAMPLES, TraceError, count_rows, read_trace, trace_path

_option = partial(click.option, show_envvar=True)

EXAMPLES = """\b
Examples:
  forebay replay conv-sample --target http://127.0.0.1:8000 --limit 200
  forebay replay trace.csv --target http://10.0.0.1:8000 --target http://10.0.0.2:8000 --rate 12"""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for, checked."""

    trace: Path
    targets: tuple[str, ...]
    plan: Plan
    model: str | None
    model_wait_s: float
    stream: bool
    max_output: int | None
    ignore_eos: bool
    timeout_s: float
    lag_bound_ms: float
    seed: int
    json_file: Path | None
    progress_file: Path | None
    is_quiet: bool


@click.command(epilog=EXAMPLES)
@click.argument("trace")
@_option(
    "--target",
    multiple=True,
    required=True,
    metavar="URL",
    help="Server to send to, repeatable: round robin.",
)
@_option("--model", metavar="NAME", help="Model to ask for.  [default: the first of GET /v1/models]")
@_option(
    "--model-wait",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Longest wait for GET /v1/models to answer, s.",
)
@_option(
    "--speedup",
    type=click.FloatRange(0, 10_000, min_open=True),
    metavar="X",
    help="Shorten the trace's gaps by this factor.  [default: 1]",
)
@_option(
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    metavar="R",
    help="Rescale to R requests/s on average, in place of --speedup.",
)
@_option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N requests.")
@_option(
    "--start", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Leave out the first N rows."
)
@_option("--loop", is_flag=True, help="Begin again at the end of the trace.")
@_option("--plain", is_flag=True, help="Ask for plain answers in place of streams; TTFT and TPOT are unknown then.")
@_option("--max-output", type=click.IntRange(min=1), metavar="N", help="Ask for at most N tokens an answer.")
@_option(
    "--ignore-eos",
    is_flag=True,
    help="Ask engines that know `ignore_eos` (vLLM, SGLang, llama.cpp) for exactly the trace's answer lengths.",
)
@_option(
    "--timeout",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Longest time for one request, s.",
)
@_option(
    "--lag-bound",
    type=click.FloatRange(0, 60_000, min_open=True),
    default=DEFAULT_LAG_BOUND_MS,
    show_default=True,
    metavar="MS",
    help="A report whose client was later than this (p99, ms) is marked VOID.",
)
@_option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the prompts' text.")
@_option(
    "--json",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report as JSON too.",
)
@_option(
    "--progress-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Append a JSON line a second: counts, TTFT and lag of the last 10 s.",
)
@_option("--quiet", is_flag=True, help="No progress bar and no report on the terminal.")
@click.pass_context
def replay(
    ctx: click.Context,
    trace: str,
    target: tuple[str, ...],
    model: str | None,
    model_wait: float,
    speedup: float | None,
    rate: float | None,
    limit: int | None,
    start: int,
    loop: bool,
    plain: bool,
    max_output: int | None,
    ignore_eos: bool,
    timeout: float,
    lag_bound: float,
    seed: int,
    json: Path | None,
    progress_file: Path | None,
    quiet: bool,
) -> None:
    """Send the requests of TRACE to a server at the times they came, and report what it did.

    TRACE is a file, an Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or Mooncake JSONL, or the name of a sample
    that comes with Forebay: conv-sample. Prompts are synthetic text of the trace's lengths.

    The replay is open loop: a request leaves when the trace says so, however long the others take, as users do.
    How late the client itself was is measured too; a report is VOID if that was more than --lag-bound.

    Ctrl-C or SIGTERM ends it with the report of what was done. Exit status: 0 every request was answered, 1 any error.
    """
    if speedup is not None and rate is not None:
        raise click.UsageError("--speedup and --rate exclude each other")
    plan = Plan(start=start, limit=limit, loop=loop, speedup=speedup or 1.0, rate=rate)
    options = ReplayOptions(
        trace=trace_path(trace), targets=target, plan=plan, model=model, model_wait_s=model_wait, stream=not plain,
        max_output=max_output, ignore_eos=ignore_eos, timeout_s=timeout, lag_bound_ms=lag_bound, seed=seed,
        json_file=json, progress_file=progress_file, is_quiet=quiet,
    )  # fmt: skip
    try:
        report = _run(options)
    except (ForebayError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    ctx.exit(1 if report.failed else 0)


def _run(options: ReplayOptions) -> Report:
    targets = [Target(url) for url in options.targets]
    _check_rows(options)
    with ExitStack() as stack:
        tellers: list[Callable[[ProgressLine], None]] = []
        # Opened before anything is sent: a replay of an hour must not end in "no such directory".
        json_out = None if options.json_file is None else stack.enter_context(options.json_file.open("wb"))
        if options.progress_file is not None:
            file = stack.enter_context(options.progress_file.open("a", encoding="utf-8"))
            tellers.append(partial(_write_line, file))
        console = Console()
        if console.is_terminal and not options.is_quiet:
            tellers.append(stack.enter_context(Bar(console, _total(options))).show)
        report = uvloop.run(_replay(options, targets, tellers))
        if json_out is not None:
            json_out.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if not options.is_quiet:
        if console.is_terminal:
            console.print(render(report))
        else:
            click.echo(plain_text(report), nl=False)
    return report


async def _replay(
    options: ReplayOptions, targets: list[Target], tellers: list[Callable[[ProgressLine], None]]
) -> Report:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    model = options.model or await unless_stopped(stop, first_model(targets[0], deadline_s=options.model_wait_s))
    if model is None:
        raise ForebayError(f"stopped before {targets[0].base_url} named a model")
    prompts = PromptMaker(
        model,
        seed=options.seed,
        stream=options.stream,
        max_output=options.max_output,
        ignore_eos=options.ignore_eos,
    )
    return await run_replay(
        schedule(options.plan, partial(read_trace, options.trace)),
        prompts,
        targets,
        stop=stop,
        timeout_s=options.timeout_s,
        stream=options.stream,
        lag_bound_ms=options.lag_bound_ms,
        on_progress=(lambda line: _tell_all(tellers, line)) if tellers else None,
    )


def _check_rows(options: ReplayOptions) -> None:
    """Fail before anything is sent if the trace cannot be read or nothing of it is chosen."""
    if next(schedule(options.plan, partial(read_trace, options.trace)), None) is None:
        samples = ", ".join(SAMPLES)
        raise TraceError(f"{options.trace}: no rows from --start {options.plan.start} on (samples: {samples})")


def _total(options: ReplayOptions) -> int | None:
    if options.plan.loop:
        return options.plan.limit
    rows = max(0, count_rows(options.trace) - options.plan.start)
    return rows if options.plan.limit is None else min(rows, options.plan.limit)


def _tell_all(tellers: list[Callable[[ProgressLine], None]], line: ProgressLine) -> None:
    for tell in tellers:
        tell(line)


def _write_line(file: TextIO, line: ProgressLine) -> None:
    file.write(msgspec.json.encode(line).decode() + "\n")
    file.flush()
