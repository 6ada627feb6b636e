"""A command group that imports a command only when it is called, so that `--help` and completion stay fast."""

import importlib

import click
import msgspec


class LazyCommand(msgspec.Struct, frozen=True):
    """Where a command is (module:attribute) and the line that the group's help shows for it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are named in a table."""

    def __init__(self, *, table: dict[str, LazyCommand], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] # handed on as click's decorator gives them
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; raises ClickException if this installation lacks it."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise click.ClickException(f"{cmd_name}: cannot be loaded here: {error}") from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's summaries; no command is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])
