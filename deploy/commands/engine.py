"""`forebay engine`: simulated LLM engines, one or several in one process."""

import asyncio
import signal

import click
import msgspec
import uvloop

from deploy.engine.config import EngineConfig
from deploy.options import Spelling, configured

EXAMPLES = """\b
Examples:
  forebay engine --port 9101 --speed 0.5 --max-num-seqs 8
  forebay engine --port 9101 --count 4        four of them, on 9101 to 9104"""


@click.command(epilog=EXAMPLES)
@configured(EngineConfig, batching=Spelling(is_inline=True), models=Spelling(flags=("--model",), metavar="NAME"))
@click.option(
    "--count",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    show_envvar=True,
    help="Engines in this process, on consecutive ports.",
)
def engine(config: EngineConfig, count: int) -> None:
    """Run a simulated engine: an OpenAI-compatible server that behaves as vLLM does, without a model.

    Continuous batching, chunked prefill, a KV cache that fills, a queue, metrics under vLLM's names, faults on request.
    """
    if config.port and config.port + count - 1 > 65535:
        raise click.UsageError(f"--count: {count} engines from port {config.port} on go beyond port 65535")
    configs = several(config, count)
    try:
        uvloop.run(run(configs))
    except (OSError, UnicodeError) as error:
        at = f"{config.host}:{config.port}" + (f" to {config.port + count - 1}" if count > 1 and config.port else "")
        why = "not a host name" if isinstance(error, UnicodeError) else error.strerror or error
        raise click.ClickException(f"cannot listen on {at}: {why}") from error


def several(config: EngineConfig, count: int) -> list[EngineConfig]:
    """Return `count` engines like this one, each with its own port and seed.

    >>> [(each.port, each.seed) for each in several(EngineConfig(port=9101, seed=7), 2)]
    [(9101, 7), (9102, 8)]
    """
    return [
        msgspec.structs.replace(config, port=config.port and config.port + index, seed=(config.seed + index) % 2**32)
        for index in range(count)
    ]


async def run(configs: list[EngineConfig]) -> None:
    """Serve until SIGINT or SIGTERM."""
    from deploy.engine.server import serve  # the server's libraries are loaded only where a server is started

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(configs, stop=stop, ready=lambda urls: click.echo("\n".join(urls)))
