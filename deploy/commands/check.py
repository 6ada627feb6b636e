"""`forebay check`: what is wrong with the configuration and its surroundings, and what to do."""

import asyncio
from typing import Annotated

import aiohttp
import click
import msgspec
from msgspec import Meta

from deploy.addresses import parsed_engine
from deploy.checks.finding import Finding, wrong
from deploy.checks.settings import ReadSettings, read_all
from deploy.options import Spelling, configured
from workers.config import InstanceConfig

EXAMPLES = """\b
Examples:
  forebay check --redis redis://10.0.0.2:6379/0 --engine http://10.0.0.5:8000
  forebay --config fleet.toml check"""


class CheckConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at beside what the other commands are configured to use."""

    redis: Annotated[str, Meta(description="Bus to look at; by default the one [proxy] names.")] = ""
    engines: Annotated[
        tuple[InstanceConfig, ...], Meta(description="Engine to look at, repeatable; by default those [worker] names.")
    ] = ()


@click.command(epilog=EXAMPLES)
@configured(CheckConfig, engines=Spelling(flags=("--engine",), metavar="[ID=]URL", parse=parsed_engine))
@click.pass_context
def check(ctx: click.Context, config: CheckConfig) -> None:
    """Read the configuration as every command does, look at bus, engines and ports, and say what to do.

    Changes nothing. Exit status 1 if something is wrong.
    """
    settings = read_all(ctx)
    findings = [*settings.findings, *asyncio.run(look(config, settings))]
    for finding in findings:
        click.echo(str(finding))
    ctx.exit(1 if any(finding.verdict == "wrong" for finding in findings) else 0)


async def look(config: CheckConfig, settings: ReadSettings) -> list[Finding]:
    """Return what the bus, the engines and the ports are like."""
    from deploy.checks.bus import check_bus  # network libraries are loaded only where the network is used
    from deploy.checks.engine import check_engine, key_header
    from deploy.checks.ports import check_ports
    from deploy.checks.safety import check_safety

    findings = [*check_ports(settings), *check_safety(settings)]
    buses = [config.redis] if config.redis else settings.buses
    if len(buses) > 1:
        findings.append(wrong("bus", "[proxy] and [worker] name different ones", "set the same redis in both"))
    for url in buses:
        findings += await check_bus(url)
    headers, problems = key_header(settings.engine_key_file)
    findings += problems
    async with aiohttp.ClientSession(headers=headers) as session:
        engines = config.engines or settings.instances
        for answers in await asyncio.gather(*(check_engine(session, engine) for engine in engines)):
            findings += answers
    return findings
