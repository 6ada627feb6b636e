"""`forebay up`: the whole cluster on one machine."""

import asyncio
from pathlib import Path

import click

from deploy.addresses import parsed_engine, repeated
from deploy.cluster.config import UpConfig
from deploy.options import Spelling, config_of, configured, one_of
from deploy.settings import PATH_KEY
from proxy.config import ProxyConfig
from proxy.strategies import STRATEGIES

EXAMPLES = """\b
Examples:
  forebay up --sim 4 --replicas 2 --demo-traffic
  forebay up --engine big=http://10.0.0.5:8000 --engine http://10.0.0.6:8000 --slots 64
  RUN_S=20 forebay up --demo-traffic        ends by itself, with a summary"""


@click.command(epilog=EXAMPLES)
@configured(
    UpConfig,
    engines=Spelling(flags=("--engine",), metavar="[ID=]URL", parse=parsed_engine),
    strategy=one_of(STRATEGIES),
    run_s=Spelling(envvar=("FOREBAY_UP_RUN_S", "RUN_S")),
)
@click.pass_context
def up(ctx: click.Context, config: UpConfig) -> None:
    """Run bus, engines, queue workers and replicas on this machine, each a process of its own, and watch them.

    Without --engine the engines are simulated; without --redis a bus is embedded. A part that dies is started again.
    Ctrl-C or SIGTERM stops everything.
    """
    simulated = {f"sim-{number}" for number in range(1, config.simulated + 1)}
    twice = repeated(config.engines) or next((each.id for each in config.engines if each.id in simulated), "")
    if twice:
        raise click.UsageError(f"--engine: two engines are called {twice!r}; give each an id of its own, as ID=URL")
    replicas = config_of(ctx, "proxy", ProxyConfig)
    if config.demo_traffic and (replicas.tls_cert or replicas.api_keys):
        raise click.UsageError("--demo-traffic speaks plain HTTP and has no key; [proxy] sets tls_cert or api_keys")
    path: Path | None = ctx.meta.get(PATH_KEY)
    from deploy.cluster.run import run_cluster  # what runs a cluster is loaded only where one is run

    asyncio.run(run_cluster(config, replicas, settings=path.absolute() if path else None))
