"""Workers that answer their health, and what they were asked."""

import msgspec

from tests.hop.scripted import Asked, Peer


def code_of(body: bytes) -> str:
    """Give the code of an error answer."""
    return msgspec.json.decode(body)["error"]["code"]


def asked_for_work(worker) -> int:
    """Give how many requests of clients a worker got, its health left out."""
    return sum(asked.method == "POST" for asked in worker.asked)


def lives(respond):
    """A worker that answers its health, and does its work by `respond`."""

    def answer(peer: Peer, asked: Asked):
        return peer.answer(b'{"status":"ok"}') if asked.method == "GET" else respond(peer, asked)

    return answer
