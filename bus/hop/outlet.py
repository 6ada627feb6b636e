"""Streams for logs: a reader that stands still, a full pipe, must cost lines and never stop a process.

A pipe that takes a write at all takes PIPE_BUF bytes of it (POSIX: 512 and more, 4 096 on Linux) without making us
wait, which is longer than the lines here are.
"""

import logging
import select
from typing import IO, Any


class Outlet:
    """Says whether a stream takes a line now; one without a descriptor always does."""

    def __init__(self, stream: IO[Any]) -> None:
        self._poll: select.poll | None = None
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):
            return
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    @property
    def takes_a_line(self) -> bool:
        """Whether a short write would not wait; a stream that is broken takes it too, and says so."""
        return self._poll is None or bool(self._poll.poll(0))


class OutletHandler(logging.StreamHandler[Any]):
    """Log lines to a stream, save those that it would have to wait for: how many is said when it takes one again."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(stream)
        self._lost = 0
        self._outlet = Outlet(stream)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or lose it."""
        if not self._outlet.takes_a_line:
            self._lost += 1
            return
        if self._lost:
            words = f"{self._lost} lines of this log were lost: nobody took them"
            self._lost = 0
            super().emit(logging.LogRecord("forebay", logging.WARNING, "", 0, words, None, None))
        super().emit(record)
