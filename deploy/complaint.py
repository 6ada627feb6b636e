"""One line for everything that can be wrong with a command line, its variables or its file."""

import os

import click
from click.core import ParameterSource

from deploy.settings import PATH_KEY, dotted, toml_path


def one_line(error: click.ClickException) -> str:
    """Return what is wrong: the command, the option, the value and what is allowed, and where the value came from."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    where = ctx.command_path if ctx else "forebay"
    if isinstance(error, click.MissingParameter) and error.param and ctx:
        text = f"{flag_of(error.param)} is missing{alternatives(error.param, ctx)}"
    elif isinstance(error, click.BadParameter) and error.param and ctx:
        text = f"{flag_of(error.param)}: {error.message}{origin(error.param, ctx)}"
    else:
        text = error.format_message()
    return f"{where}: {' '.join(text.split())}"


def flag_of(param: click.Parameter) -> str:
    """Return the name a person types: the longest flag, or an argument's metavar."""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def origin(param: click.Parameter, ctx: click.Context) -> str:
    """Return where a value came from, if it was not typed."""
    source = ctx.get_parameter_source(param.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f" (from {variable_in_use(param, ctx)})"
    if source is ParameterSource.DEFAULT_MAP:
        return f" (from {dotted(toml_path(param))} in [{ctx.info_name}] of {ctx.meta.get(PATH_KEY)})"
    return ""


def variables_of(param: click.Parameter, ctx: click.Context) -> list[str]:
    """Return the environment variables that set a parameter, the first wins."""
    named = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or ())
    automatic = f"{ctx.auto_envvar_prefix}_{(param.name or '').upper()}" if ctx.auto_envvar_prefix else ""
    return [*named, *([automatic] if automatic and automatic not in named and isinstance(param, click.Option) else [])]


def variable_in_use(param: click.Parameter, ctx: click.Context) -> str:
    """Return the variable a value was taken from."""
    names = variables_of(param, ctx)
    return next((name for name in names if os.environ.get(name)), names[0])


def alternatives(param: click.Parameter, ctx: click.Context) -> str:
    """Return the other ways to give a missing value."""
    names = variables_of(param, ctx)
    return f"; give it there, in {names[-1]} or in [{ctx.info_name}] of forebay.toml" if names else ""
