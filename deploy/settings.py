"""The file `forebay.toml`: one table a command, its keys the command's options.

Reads it and checks the names; the values are the options' work.
"""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from deploy.options import FieldOption

DEFAULT_FILE = Path("forebay.toml")
"""Read where nothing else is named, if it exists in the folder the command is started in."""

PATH_KEY = "forebay.settings.path"
"""Where the context keeps the path of the file that was read, for messages and for child processes."""


def read_settings(ctx: click.Context, path: Path | None) -> None:
    """Make the file's values the defaults of the commands below this context; raises UsageError for what is unknown."""
    chosen = path or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    ctx.meta[PATH_KEY] = chosen
    if chosen is None:
        return
    group = ctx.command
    tables = parsed(chosen)
    if not isinstance(group, click.Group):
        raise TypeError("only a group has tables")
    ctx.default_map = {name: flattened(chosen, name, table, group, ctx) for name, table in tables.items()}


def parsed(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; raises UsageError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.UsageError(f"{path}: not valid TOML: {error}".replace("\n", " ")) from error


def flattened(path: Path, name: str, table: object, group: click.Group, ctx: click.Context) -> dict[str, Any]:
    """Return a command's table by parameter names; raises UsageError for an unknown table or key.

    A single value of an option that is repeatable is a list of one.
    """
    if name not in group.list_commands(ctx):
        raise click.UsageError(f"{path}: unknown table [{name}]{nearest(name, group.list_commands(ctx))}")
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: {name} must be a table, [{name}]")
    command = group.get_command(ctx, name)
    params = {toml_path(param): param for param in (command.params if command else ()) if is_settable(param)}
    values: dict[str, Any] = {}
    for key, value in leaves(table, (), {known[:-1] for known in params}):
        param = params.get(key)
        if param is None or param.name is None:
            raise click.UsageError(
                f"{path}: unknown key {dotted(key)} in [{name}]{nearest(dotted(key), map(dotted, params))}"
            )
        values[param.name] = [value] if param.multiple and not isinstance(value, list) else value
    return values


def leaves(
    table: dict[str, Any], above: tuple[str, ...], tables: set[tuple[str, ...]]
) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Yield each key of a table with its value, going into those nested tables that options have."""
    for key, value in table.items():
        here = (*above, key)
        if isinstance(value, dict) and here in tables:
            yield from leaves(value, here, tables)
        else:
            yield here, value


def toml_path(param: click.Parameter) -> tuple[str, ...]:
    """Return where a parameter stands in its command's table."""
    return param.toml_path if isinstance(param, FieldOption) else (param.name or "",)


def is_settable(param: click.Parameter) -> bool:
    """Return whether a table may hold this parameter: any option but those that only print and end."""
    return isinstance(param, click.Option) and not param.is_eager


def dotted(path: tuple[str, ...]) -> str:
    """Return a nested key as TOML writes it.

    >>> dotted(("weight", "inflight"))
    'weight.inflight'
    """
    return ".".join(path)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the nearest known word, or all of them where none is near.

    >>> nearest("admin-port", ["admin_port", "host"])
    '; did you mean admin_port?'
    >>> nearest("x", ["proxy", "worker"])
    '; known: proxy, worker'
    """
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; known: " + ", ".join(words)
