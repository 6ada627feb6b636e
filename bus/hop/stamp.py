"""What changes when a file does: also where another one was moved over it within one tick of the clock."""

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp_of(path: str | Path) -> Stamp:
    """Time, size and identity of a file. Raises OSError."""
    found = Path(path).stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
