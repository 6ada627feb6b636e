"""Logs whose reader stands still: lines are lost, and nobody waits."""

import io
import logging
import os
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from bus.hop.outlet import Outlet, OutletHandler
from proxy.access_log import AccessLine, AccessLog


class Pipe:
    """A pipe that is read only when it is told to be."""

    def __init__(self) -> None:
        self._descriptor, writer = os.pipe()
        self.writer: BinaryIO = os.fdopen(writer, "wb")

    def read(self) -> bytes:
        """What is there."""
        return os.read(self._descriptor, 1_000_000)

    def close(self) -> None:
        """Both ends."""
        os.close(self._descriptor)
        self.writer.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Give a pipe."""
    one = Pipe()
    yield one
    one.close()


def line(request_id: str = "r") -> AccessLine:
    """One request."""
    return AccessLine(at=0.0, request_id=request_id, method="POST", path="/v1/chat/completions")


def test_an_access_log_whose_reader_stands_still_loses_lines_and_goes_on(pipe):
    """A thousand lines do not fit a pipe; what was written is whole, and later lines are written again."""
    lost: list[None] = []
    log = AccessLog(True, pipe.writer, on_lost=lambda: lost.append(None))
    for _ in range(1000):
        log.write(line())
    assert 0 < len(lost) < 1000
    read = pipe.read()
    assert read.count(b"\n") == 1000 - len(lost)
    assert read.endswith(b"\n")
    log.write(line("later"))
    assert b"later" in pipe.read()


def test_a_log_whose_reader_stands_still_loses_lines_and_goes_on(pipe):
    """The same for what a process says of itself; afterwards it says how many."""
    stream = io.TextIOWrapper(pipe.writer, write_through=True)
    handler = OutletHandler(stream)
    record = logging.LogRecord("forebay", logging.INFO, "", 0, "x" * 200, None, None)
    for _ in range(1000):
        handler.handle(record)
    lost = 1000 - pipe.read().count(b"\n")
    assert 0 < lost < 1000
    for _ in range(2):
        handler.handle(record)
    said, *lines = pipe.read().decode().splitlines()
    assert said == f"{lost} lines of this log were lost: nobody took them"
    assert lines == ["x" * 200] * 2
    stream.detach()


def test_what_has_no_descriptor_and_what_is_a_file_takes_every_line(tmp_path):
    """Memory and disks do not stand still, they fail: that is told by the write."""
    with (tmp_path / "log").open("wb") as file:
        assert Outlet(file).takes_a_line
    assert Outlet(io.BytesIO()).takes_a_line


def test_a_reader_that_is_gone_is_told_by_the_write():
    """A broken pipe costs the line, as a full disk does."""
    lost: list[None] = []
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "wb") as stream:
        AccessLog(True, stream, on_lost=lambda: lost.append(None)).write(line())
    assert len(lost) == 1
