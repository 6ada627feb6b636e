"""A replay's progress bar. Drawn once a progress line, not by a thread of its own: the CPU belongs to the sending."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.loads import UNKNOWN
from deploy.replay.progress import ProgressLine


class Bar(Progress):
    """A progress bar over the requests that are over; None as total: nobody knows how many there will be."""

    def __init__(self, console: Console, total: int | None) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self.add_task("replaying", total=total)

    def show(self, line: ProgressLine) -> None:
        """Draw the state that a progress line tells."""
        ttft = UNKNOWN if line.ttft_p99_ms is None else f"{line.ttft_p99_ms:.0f} ms"
        flying = line.sent - line.done - line.errors
        self.update(
            self._task,
            completed=line.done + line.errors,
            description=f"in flight {flying}, errors {line.errors}, TTFT p99 {ttft}",
        )
        self.refresh()
