"""How commands ask the admin pages of replicas: with a key where one is set, and never for long."""

from collections.abc import Callable
from typing import Any, Final

import aiohttp
import click

from bus.hop.secrets import SecretUnusable, read_secret

#: A replica answers its debug pages in milliseconds; later than this it is as good as gone.
ANSWER_S: Final = 2.0


def admin_key_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command have `--admin-key-file`; it is given `admin_key_file`."""
    return click.option(
        "--admin-key-file",
        default="",
        show_envvar=True,
        metavar="FILE",
        help="File whose first line is the key of the admin pages, where the replicas ask for one.",
    )(command)


def admin_headers(admin_key_file: str) -> dict[str, str]:
    """Headers that show the key of a file, none for none. Raises click.BadParameter."""
    try:
        key = read_secret(admin_key_file)
    except SecretUnusable as fault:
        raise click.BadParameter(str(fault), param_hint="--admin-key-file") from fault
    return {"Authorization": f"Bearer {key.reveal().decode()}"} if key else {}


def admin_session(headers: dict[str, str]) -> aiohttp.ClientSession:
    """Session for the admin pages of replicas."""
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
