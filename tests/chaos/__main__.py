"""`python -m tests.chaos`: break things under load, print what became of every request."""

import random
import sys
import tempfile
from pathlib import Path

import click
import msgspec
import uvloop

from tests.chaos.campaign import LOAD, campaign, chosen, stop_in_order
from tests.chaos.report import Report, text


@click.command()
@click.option("--only", multiple=True, metavar="TEXT", help="Only faults whose name contains this, repeatable.")
@click.option("--times", type=click.IntRange(1), default=3, show_default=True, help="How often each fault comes.")
@click.option("--random-s", type=click.FloatRange(0), default=60.0, show_default=True, help="Faults at random after.")
@click.option("--seed", type=click.IntRange(0), help="Of load, order and victims; drawn and printed if not given.")
@click.option("--load", type=click.FloatRange(0.05, 0.9), default=LOAD, show_default=True, help="Share of capacity.")
@click.option("--short", is_flag=True, help="Only the faults of the short form.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write the whole report to FILE.")
def main(
    only: tuple[str, ...], times: int, random_s: float, seed: int | None, load: float, short: bool, json: Path | None
) -> None:
    """Break every part of a fleet under load, and account for every request.

    Exit status 0: nothing was lost, nothing broke that had no reason to, every recovery was within two TTLs.
    """
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="forebay-chaos-") as folder:
        found = uvloop.run(run(Path(folder), only, times, random_s, seed, load, short))
    click.echo(text(found))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    sys.exit(1 if found.missed else 0)


async def run(
    folder: Path, only: tuple[str, ...], times: int, random_s: float, seed: int, load: float, is_short: bool
) -> Report:
    """One campaign: by schedule, then at random."""
    faults = chosen(only, is_short=is_short)
    if not faults:
        raise click.UsageError("no fault is left")

    def say(line: str) -> None:
        click.echo(line, err=True)

    stop_in_order()
    async with campaign(folder, seed=seed, say=say, load=load) as current:
        await current.one_by_one(faults, times)
        if random_s:
            await current.at_random(faults, for_s=random_s, every_s=8.0)
            await current.stand.whole()
    return current.report(" ".join(["python -m tests.chaos", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
