"""What a log may say of a fault: its type and where it came from, never its message. A message may quote a prompt."""

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Any

log = logging.getLogger("forebay")


def trace_of(fault: BaseException) -> str:
    """Type of a fault and the lines it passed through, the innermost last, with the faults that caused it.

    >>> try:
    ...     int("a secret")
    ... except ValueError as fault:
    ...     trace_of(fault).partition(" at ")[0]
    'ValueError'
    """
    frames = traceback.extract_tb(fault.__traceback__)
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    trace = f"{type(fault).__name__} at {places}"
    cause = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
    return f"{trace}; caused by {trace_of(cause)}" if cause else trace


class WithoutContent(logging.Filter):
    """Replaces the traceback of a library's log line, which quotes what clients sent, by the places it names."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; it is always let through."""
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.name}: {trace_of(record.exc_info[1])}", ()
            record.exc_info = record.exc_text = None
        return True


def log_loop_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handler for what no task has caught."""
    fault = context.get("exception")
    log.error("%s%s", context.get("message", "a fault"), f": {trace_of(fault)}" if fault else "")
