"""Ties a program's life to the process that starts it, so that nothing outlives a killed supervisor.

Runs as a script of its own in front of the program and replaces itself with it, so that no code runs between fork and
exec in a process that has threads. Knows nothing of what it runs; imports nothing of this project.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when the thread that started it ends."""


def tethered(command: Sequence[str], *, parent_pid: int) -> list[str]:
    """Return the command that runs `command` and, on Linux, kills it when the process `parent_pid` is gone."""
    return [sys.executable, "-I", "-S", __file__, str(parent_pid), *command]


def main(arguments: Sequence[str]) -> None:
    """Arrange the death signal and become the program; ends at once if the parent is already gone."""
    parent_pid, program = int(arguments[0]), list(arguments[1:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before the signal was arranged
            sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606 # no shell is the point
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
