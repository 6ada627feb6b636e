"""The forms of Redis, each started for the first test that asks for it and ended with the session."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from bus.client import connect
from bus.link import Link
from tests.bus.forms.cluster import Cluster
from tests.bus.forms.node import OPEN, Security
from tests.bus.forms.sentinels import Sentinels
from tests.bus.forms.single import Single
from tests.servers import BINARIES

Form = Cluster | Sentinels | Single
Connect = Callable[..., Link]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Path:
    """Give a folder with an authority and one certificate for all who stand on 127.0.0.1."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "own.pem"))
    return folder


def program(kind: str) -> Path:
    """Server program of a kind; without it the test is skipped, and says why."""
    find, why_not = BINARIES[kind]
    found = find()
    if found is None:
        pytest.skip(why_not)
    return found


@pytest.fixture(scope="session")
def start_form(certificates) -> Iterator[Callable[[str], Form]]:
    """Start a form by its name; the Valkey of the lock file has no TLS, so what has it runs on Redis."""
    closed = Security(password="swordfish", certificates=certificates)  # noqa: S106 - of a server that dies with the test
    makers: dict[str, Callable[[], Form]] = {
        "cluster": lambda: Cluster(program("valkey")),
        "cluster-tls": lambda: Cluster(program("redis"), closed),
        "sentinels": lambda: Sentinels(program("valkey")),
        "sentinels-tls": lambda: Sentinels(program("redis"), closed),
        "tls": lambda: Single(program("redis"), Security(certificates=certificates)),
        "socket": lambda: Single(program("valkey"), OPEN, by_socket=True),
        "socket-password": lambda: Single(program("redis"), Security(password="swordfish"), by_socket=True),  # noqa: S106
    }
    started: dict[str, Form] = {}
    with ExitStack() as stack:

        def form(name: str) -> Form:
            if name not in started:
                started[name] = stack.enter_context(makers[name]())
            return started[name]

        yield form


@pytest.fixture(params=["cluster", "cluster-tls", "sentinels", "sentinels-tls", "tls", "socket", "socket-password"])
def form(request, start_form) -> Form:
    """Give each form of Redis."""
    return start_form(request.param)


@pytest.fixture
def cluster(start_form) -> Cluster:
    """Give a cluster."""
    return start_form("cluster")


@pytest.fixture
def sentinels(start_form) -> Sentinels:
    """Give a master that sentinels watch."""
    return start_form("sentinels")


@pytest.fixture
async def link_to() -> AsyncIterator[Connect]:
    """Make links as production makes them; they are closed with the test."""
    links: list[Link] = []

    def make(url: str, timeout_s: float = 5.0) -> Link:
        links.append(connect(url, timeout_s=timeout_s))
        return links[-1]

    yield make
    for link in links:
        await link.aclose()
