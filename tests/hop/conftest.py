"""Scripted servers for the tests of the hop."""

from collections.abc import Iterator

import pytest

from bus.hop.client import HopClient
from tests.hop.scripted import serve

__all__ = ["serve"]


@pytest.fixture
def client() -> Iterator[type[HopClient]]:
    """Make clients that are closed with the test."""
    made: list[HopClient] = []

    def make(url: str, **settings: float) -> HopClient:
        made.append(HopClient(url, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
