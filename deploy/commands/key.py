"""`forebay key`: API keys of clients."""

import secrets

import click

from bus.hop.headers import PRIORITIES, Priority
from bus.key_limits import Limits
from deploy.allowed import shown_value
from proxy.keys import LARGEST_LIMIT, NAME, NAME_RANGE, line_of

KEY_BYTES = 32
"""Chance in a key: 256 bits, which nobody guesses, so that a plain SHA-256 of it may be stored."""

EXAMPLE = """\b
Example: a key for at most 8 requests at once and 60 000 tokens a minute, over all replicas
  forebay key new team-a --inflight 8 --tokens-per-minute 60000
  forebay proxy --api-keys keys.txt"""


@click.group(epilog=EXAMPLE)
def key() -> None:
    """Make API keys for clients; the file of --api-keys holds their hashes and their limits."""


@key.command()
@click.argument("name")
@click.option(
    "--inflight",
    type=click.IntRange(0, LARGEST_LIMIT),
    default=0,
    metavar="N",
    help="Requests at once, over all replicas; 0: any number.",
)
@click.option(
    "--tokens-per-minute",
    type=click.IntRange(0, LARGEST_LIMIT),
    default=0,
    metavar="N",
    help="Tokens read and written a minute, over all replicas; 0: any number.",
)
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    default=PRIORITIES[0],
    show_default=True,
    help="Best class of its requests, whatever they wish for.",
)
def new(name: str, inflight: int, tokens_per_minute: int, priority: Priority) -> None:
    """Print a new key, once, on standard error, and the line for the file on standard output.

    The key itself is stored nowhere: who loses it needs a new one. `forebay key new NAME >> keys` parts the two.
    """
    secret = f"fb-{secrets.token_urlsafe(KEY_BYTES)}"
    if NAME.fullmatch(name) is None:
        raise click.BadParameter(f"{shown_value(name)} is not allowed: {NAME_RANGE}", param_hint="NAME")
    click.echo(f"key of {name}, shown this once: {secret}", err=True)
    click.echo(line_of(name, secret, Limits(inflight, tokens_per_minute), priority))
