"""What several suites of the bus ask for."""

import pytest

from bus.reservations import Reservations
from tests.bus.calls import Scripts
from tests.bus.store import Store
from tests.bus.worker import POOL


@pytest.fixture
def store(bus) -> Store:
    """Give the reservations as each server stores them."""
    return Store(bus.client)


@pytest.fixture
def reservations(bus) -> Reservations:
    """Give a replica's reservations."""
    return Reservations(bus.connect(), POOL)


@pytest.fixture
def scripts(bus) -> Scripts:
    """Give the scripts on each server."""
    return Scripts(bus.client)
