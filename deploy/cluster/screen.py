"""Where the view goes: a live screen on a terminal, else a line a second. Owns standard output meanwhile."""

import sys
from typing import Protocol, Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deploy.cluster.processes import Death
from deploy.cluster.view import Snapshot, plain_line, screen


class Screen(Protocol):
    """Shows snapshots and deaths as they come."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, snapshot: Snapshot) -> None:
        """Show the cluster as it is now."""

    def death(self, death: Death) -> None:
        """Show that a part died, with its last words."""


class PlainLines:
    """A line for everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot as a line."""
        click.echo(plain_line(snapshot))

    def death(self, death: Death) -> None:
        """Print what happened and the part's last lines."""
        click.echo(str(death))
        for line in death.last_lines:
            click.echo(f"  | {line}")


class LiveScreen:
    """A table that is drawn anew, under what has been said before it."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Draw the snapshot."""
        self.live.update(screen(snapshot), refresh=True)

    def death(self, death: Death) -> None:
        """Write what happened above the table."""
        self.live.console.print(Text(str(death), style="yellow"))
        for line in death.last_lines:
            self.live.console.print(Text(f"  | {line}", style="dim"))


def screen_for_output() -> Screen:
    """Return the screen that standard output is good for."""
    return LiveScreen(Console()) if sys.stdout.isatty() else PlainLines()
