"""One request by a client, and the plainest answer to it."""

from bus.hop.answer import Answer
from bus.hop.client import HopClient
from tests.hop.scripted import Asked, Peer

HEAD = b"HTTP/1.1 200 OK\r\n"
LIMIT = 10_000_000


async def get(
    hop: HopClient, target: str = "/x", *, method: str = "GET", body: bytes = b"", limit_s: float = 5.0
) -> Answer:
    """Send one request and wait for the head of its answer."""
    return await hop.exchange(method, target, [(b"accept", b"*/*")], body, head_timeout_s=limit_s)


def hello(peer: Peer, _: Asked) -> None:
    """Answer well."""
    peer.answer(b"hello")
