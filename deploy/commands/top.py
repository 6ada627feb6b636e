"""`forebay top`: the load of every instance as one replica sees it, live."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

import aiohttp
import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from deploy import loads_view, selections_view
from deploy.admin import ANSWER_S, admin_headers, admin_key_option, admin_session
from deploy.loads import Loads
from deploy.loads import decode as decode_loads

_option = partial(click.option, show_envvar=True)

_CHOICES = 5


class Sample(msgspec.Struct, frozen=True):
    """What one poll of a replica gave: its loads and choices, or the problem."""

    loads: Loads | None
    selections: selections_view.Selections
    problem: str | None = None


@click.command(
    epilog="""\b
Signs: – unknown (never 0), ~ taken from another instance since this one is silent.
Example: forebay top --target http://10.0.0.3:9000 --once"""
)
@_option(
    "--target", default="http://127.0.0.1:9000", show_default=True, metavar="URL", help="Admin listener of a replica."
)
@_option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Time between two looks, s.",
)
@_option("--once", is_flag=True, help="Look once and end: exit status 0, or 1 if the replica does not answer.")
@admin_key_option
@click.pass_context
def top(ctx: click.Context, target: str, interval: float, once: bool, admin_key_file: str) -> None:
    """Show the load of every instance as a replica sees it, and its last choices; Ctrl-C ends it.

    A replica that goes away is waited for. Where standard output is no terminal, a plain line is printed each time.
    """
    if not target.startswith(("http://", "https://")):
        raise click.BadParameter(f"{target}: must be http://HOST:PORT", ctx=ctx, param_hint="--target")
    headers = admin_headers(admin_key_file)
    console = Console()
    with ExitStack() as stack:
        if console.is_terminal and not once:
            show = _live(stack.enter_context(Live(console=console, auto_refresh=False, screen=True)))
        else:
            show = _printer(console)
        is_answered = asyncio.run(_watch(target.rstrip("/"), headers, interval, once, show))
    ctx.exit(1 if once and not is_answered else 0)


def _live(live: Live) -> Callable[[RenderableType, str], None]:
    return lambda view, _line: live.update(view, refresh=True)


def _printer(console: Console) -> Callable[[RenderableType, str], None]:
    return lambda view, line: console.print(view) if console.is_terminal else click.echo(line)


async def _watch(
    target: str,
    headers: dict[str, str],
    interval_s: float,
    is_once: bool,
    show: Callable[[RenderableType, str], None],
) -> bool:
    """Poll and show until told to stop; returns whether the last poll was answered."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    last: Sample | None = None
    async with admin_session(headers) as session:
        while not stop.is_set():
            sample = await poll(session, target)
            show(*views(sample, last, target))
            last = sample if sample.loads is not None else last
            if is_once:
                return sample.problem is None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval_s)
    return True


async def poll(session: aiohttp.ClientSession, target: str) -> Sample:
    """Look at a replica once; what goes wrong is in the sample."""
    nothing = selections_view.Selections()
    try:
        loads = decode_loads(await _get(session, f"{target}/debug/instance_loads"))
        selections = selections_view.decode(await _get(session, f"{target}/debug/selections?limit={_CHOICES}"))
    except TimeoutError:
        return Sample(None, nothing, f"no answer within {ANSWER_S:g} s")
    except msgspec.MsgspecError as error:
        return Sample(None, nothing, f"not the answer of a Forebay replica: {error}")
    except (aiohttp.ClientError, OSError) as error:
        return Sample(None, nothing, str(error))
    return Sample(loads, selections)


def views(sample: Sample, last: Sample | None, target: str) -> tuple[RenderableType, str]:
    """A sample for a terminal and as a plain line; after a problem the last good view stays, marked as old."""
    before = None if last is None else last.loads
    if sample.loads is not None:
        table = loads_view.render(sample.loads, before)
        choices = selections_view.render(sample.selections, most=_CHOICES)
        return Group(table, Text(""), choices), loads_view.plain_line(sample.loads)
    problem = f"{target} does not answer: {sample.problem}"
    parts: list[RenderableType] = [Text(problem, "bold red")]
    if before is not None:
        parts += [Text("the last it said:", "dim"), loads_view.render(before)]
    return Group(*parts), problem


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as response:
        response.raise_for_status()
        return await response.read()
