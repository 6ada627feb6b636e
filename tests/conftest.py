"""What every test may ask for: uvloop, a bus on each of three servers, and a clock that stands until it is moved."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop
from hypothesis import settings

from deploy.embedded import EmbeddedServer
from tests.servers import BINARIES, FAKE, REAL, Bus, FakeBus, RealBus

settings.register_profile("forebay", deadline=None)  # a busy machine is no fault of the example
settings.load_profile("forebay")


def pytest_asyncio_loop_factories(config, item):
    """Run every asynchronous test on the loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def real_servers() -> Iterator[Callable[[str], EmbeddedServer]]:
    """Start a real server when the first test asks for it; all are stopped, by process id, at the end."""
    started: dict[str, EmbeddedServer] = {}

    def server(kind: str) -> EmbeddedServer:
        if kind not in started:
            binary, why_not = BINARIES[kind]
            found = binary()
            if found is None:
                pytest.skip(why_not)
            one = EmbeddedServer(binary=found)
            one.start()
            started[kind] = one
        return started[kind]

    yield server
    for one in started.values():
        one.stop()


@pytest.fixture(params=[FAKE, *REAL])
async def bus(request: pytest.FixtureRequest, real_servers) -> AsyncIterator[Bus]:
    """Give an empty server of each kind."""
    if request.param == FAKE:
        fake = FakeBus()
        yield fake
        await fake.close()
    else:
        real = RealBus(real_servers(request.param))
        await real.empty()
        yield real
        await real.close()


@pytest.fixture(params=REAL)
async def real_bus(request: pytest.FixtureRequest, real_servers) -> AsyncIterator[RealBus]:
    """Give an empty real server, for what fakeredis cannot show: time limits, its own count of commands, its Lua."""
    real = RealBus(real_servers(request.param))
    await real.empty()
    yield real
    await real.close()


class Clock:
    """A monotonic clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s

    def move(self, by_s: float) -> None:
        """Let time pass."""
        self.now_s += by_s


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands until it is moved."""
    return Clock()
