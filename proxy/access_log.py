"""One JSON line a request: who was asked, how it ended, how long it took. Never a prompt, never a body."""

import sys
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from bus.hop.outlet import Outlet

_encode = msgspec.json.Encoder().encode


class AccessLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request, as it is logged; times in milliseconds."""

    at: float
    """Wall clock, seconds since 1970."""
    request_id: str
    method: str
    path: str
    status: int = 0
    key: str | None = None
    """Name of the client's API key, as the file of keys has it."""
    model: str | None = None
    instance: str | None = None
    tries: int = 0
    prompt_tokens: int | None = None
    """As estimated when the instance was chosen."""
    ttft_ms: float | None = None
    total_ms: float = 0.0
    outcome: str = "answered"
    """answered, rejected (the client's fault), failed, broken (in mid-stream) or cancelled (by the client)."""


class AccessLog:
    """Writes lines to standard output; a full disk or a reader that stands still costs lines, never requests."""

    def __init__(
        self, is_on: bool, stream: BinaryIO | None = None, *, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._is_on = is_on
        self._stream = stream or sys.stdout.buffer
        self._outlet = Outlet(self._stream)
        self._on_lost = on_lost

    def write(self, line: AccessLine) -> None:
        """Write one line."""
        if not self._is_on:
            return
        if not self._outlet.takes_a_line:
            self._on_lost()
            return
        try:
            self._stream.write(_encode(line) + b"\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._on_lost()
