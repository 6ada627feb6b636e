"""The log file of a part: what the process wrote, bounded, its last lines at hand. Knows no processes."""

import os
from pathlib import Path
from typing import BinaryIO

LONGEST_BYTES = 8 * 1024 * 1024
"""Size at which a log file is cut; several hours of access log at the demo's rate."""

KEPT_BYTES = 1024 * 1024
"""What a cut keeps, in a file of its own beside the log."""

TAIL_BYTES = 8 * 1024


class LogFile:
    """A file that processes append to directly, so that logging costs the supervisor nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> BinaryIO:
        """Open for a child; appending, so that a cut under its hands leaves no hole."""
        return self.path.open("ab")

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that hold anything."""
        try:
            text = tail(self.path, TAIL_BYTES).decode(errors="replace")
        except OSError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    def cut(self, longest_bytes: int = LONGEST_BYTES) -> bool:
        """Move the end of an overlong file to NAME.old and begin it anew; return whether that was needed."""
        try:
            if self.path.stat().st_size <= longest_bytes:
                return False
            self.path.with_suffix(".old").write_bytes(tail(self.path, KEPT_BYTES))
            os.truncate(self.path, 0)
        except OSError:
            return False  # a full or vanished disk must not stop the cluster
        return True


def tail(path: Path, count: int) -> bytes:
    """Return the last bytes of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - count))
        return file.read()
