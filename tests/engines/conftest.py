"""The ends of all logs where a test fails, as for the other tests of processes."""

from tests.processes.conftest import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]
