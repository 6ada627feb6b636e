"""The `forebay` command: its group, the options every command shares, and how it ends when something is wrong."""

import sys
from pathlib import Path

import click

from bus.errors import ForebayError
from deploy.complaint import one_line
from deploy.lazy import LazyCommand, LazyGroup
from deploy.settings import read_settings

USAGE_ERROR = 2
"""Exit status of a command that was told something impossible."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""

COMMANDS = {
    "up": LazyCommand("deploy.commands.up:up", "The whole cluster on this machine, supervised, with a live view."),
    "proxy": LazyCommand("deploy.commands.proxy:proxy", "One gateway replica; run as many as you like."),
    "worker": LazyCommand("deploy.commands.worker:worker", "The queue worker of one engine or several."),
    "engine": LazyCommand("deploy.commands.engine:engine", "A simulated LLM engine to try and measure things on."),
    "replay": LazyCommand("deploy.commands.replay:replay", "Send a recorded trace and report what clients saw."),
    "top": LazyCommand("deploy.commands.top:top", "The load of every instance, live."),
    "why": LazyCommand("deploy.commands.why:why", "Why a past request went where it went."),
    "key": LazyCommand("deploy.commands.key:key", "Make API keys for clients."),
    "check": LazyCommand("deploy.commands.check:check", "Say what is wrong with the configuration, and what to do."),
}

EPILOG = """\b
Every option can be given in three places; the later wins:
  [COMMAND] table of forebay.toml, variable FOREBAY_COMMAND_OPTION, flag.

\b
Examples:
  forebay up --sim 4 --replicas 2 --demo-traffic
  forebay up --engine http://10.0.0.5:8000 --engine http://10.0.0.6:8000
  forebay COMMAND --help"""


def print_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    """Print the installed version and end."""
    if is_asked and not ctx.resilient_parsing:
        from importlib.metadata import version  # slow to import, and needed only here

        click.echo(f"forebay {version('forebay')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=EPILOG,
    context_settings={"auto_envvar_prefix": "FOREBAY", "help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    show_envvar=True,
    help="TOML file with one table a command; by default ./forebay.toml, if there is one.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Print the version and exit.",
)
@click.pass_context
def forebay(ctx: click.Context, config: Path | None) -> None:
    """Forebay: an OpenAI-compatible gateway for fleets of LLM engines, whose replicas share one view of the load."""
    read_settings(ctx, config)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 well, 1 it failed, 2 it was told something wrong (one line says what)."""
    sys.exit(status_of(arguments))


def status_of(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        result = forebay.main(arguments, prog_name="forebay", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return USAGE_ERROR
    except click.ClickException as error:
        click.echo(one_line(error), err=True)
        return USAGE_ERROR if isinstance(error, click.UsageError) else 1
    except ForebayError as error:
        click.echo(f"forebay: {error}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
