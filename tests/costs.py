"""What something costs, by no clock: calls that are made and memory that is held."""

import gc
import sys
import tracemalloc


class Calls:
    """Counts the calls of Python and C functions that something makes."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _frame, event, _argument) -> None:
        """Take one event of the profiler."""
        self.count += event in {"call", "c_call"}

    @classmethod
    def of(cls, what, *arguments) -> int:
        """The calls of one call."""
        calls = cls()
        gc.disable()  # what is called when rubbish is collected is no call of its own
        sys.setprofile(calls)
        try:
            what(*arguments)
        finally:
            sys.setprofile(None)
            gc.enable()
        return calls.count


def peak_bytes(what, *arguments) -> int:
    """Most memory that one call holds at once."""
    tracemalloc.start()
    try:
        what(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
