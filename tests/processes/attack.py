"""One hostile request on the wire, and what may be answered to it: the parts that every class is made of."""

import json
import random
from collections.abc import Callable
from typing import NamedTuple

KEY = "fb-hostile-test-key"
METERED_KEY = "fb-hostile-metered-key"
CHAT = "/v1/chat/completions"
ENGINE_REFUSES = frozenset({400, 422})


class Attack(NamedTuple):
    """One connection's worth of bytes."""

    kind: str
    data: bytes
    allowed: frozenset[int]
    ends: str = "waits"
    """What the client does when it has sent all: waits for the answer, half_closes, or leaves."""


def head(method: str, target: str | bytes, *lines: str | bytes, version: str = "HTTP/1.1", key: str = KEY) -> bytes:
    """Head of a request, of whatever bytes."""
    raw = target if isinstance(target, bytes) else target.encode()
    fixed = [
        method.encode() + b" " + raw + b" " + version.encode(),
        b"host: x",
        b"authorization: Bearer " + key.encode(),
    ]
    rest = [line if isinstance(line, bytes) else line.encode("utf-8", "surrogateescape") for line in lines]
    return b"\r\n".join([*fixed, *rest]) + b"\r\n\r\n"


def post(body: bytes, *lines: str | bytes, path: str | bytes = CHAT, key: str = KEY) -> bytes:
    """A whole request, well framed, its connection closed after it."""
    framing = ("content-type: application/json", f"content-length: {len(body)}", "connection: close")
    named = {(line if isinstance(line, str) else line.decode("latin-1")).split(":")[0].lower() for line in lines}
    kept = [line for line in framing if line.split(":")[0] not in named]
    return head("POST", path, *kept, *lines, key=key) + body


def valid(**fields: object) -> bytes:
    """Body of a chat request."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return json.dumps({**body, **fields}).encode()


def rubbish(rng: random.Random, most: int = 400) -> bytes:
    """Bytes of any kind."""
    return rng.randbytes(rng.randrange(1, most))


def value(rng: random.Random, depth: int = 0) -> object:
    """Any JSON value."""
    kind = rng.randrange(9 if depth < 4 else 7)
    plain: list[Callable[[], object]] = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]),
        lambda: rng.choice([0.5, -0.0, 1e308, 5e-324]),
        lambda: "".join(chr(rng.choice([0, 10, 65, 233, 0x4E2D, 0x1F600])) for _ in range(rng.randrange(20))),
        lambda: rng.choice(["", "sim", "system", "\u202e", "a" * 5_000]),
        dict,
        lambda: [value(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(["model", "x", "role", "content", ""]): value(rng, depth + 1) for _ in range(3)},
    ]
    return plain[kind]()
