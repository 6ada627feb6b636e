"""Hostile requests, made from a seed: what each class of them looks like on the wire, and what may be answered to it.

Owns the generator only: no sockets, no processes. Every class names the statuses that are right for it; 0 stands for
a connection that ends without an answer, which is right only where the client itself has broken off.
"""

import random
from collections.abc import Callable, Iterator

from tests.processes.attack import Attack
from tests.processes.hostile_bodies import (
    any_fields,
    bad_model,
    bad_utf8,
    broken_json,
    compressed,
    deep,
    multipart,
    no_object,
    null_bytes,
    surrogates,
    token_limits,
    unknown_model,
)
from tests.processes.hostile_framing import (
    absurd_length,
    bad_header,
    bad_line,
    bad_target,
    chunked,
    leaves,
    method,
    no_key,
    pipelined,
    wrong_length,
)

#: How often each class comes, of a hundred.
CLASSES: dict[Callable[[random.Random], Attack], int] = {
    broken_json: 8,
    no_object: 4,
    any_fields: 10,
    bad_model: 3,
    unknown_model: 4,
    token_limits: 6,
    deep: 3,
    bad_utf8: 4,
    null_bytes: 4,
    surrogates: 2,
    multipart: 4,
    compressed: 4,
    wrong_length: 5,
    absurd_length: 4,
    chunked: 7,
    pipelined: 4,
    bad_line: 5,
    bad_header: 8,
    bad_target: 6,
    no_key: 3,
    leaves: 3,
    method: 2,
}


def attacks(seed: int, count: int) -> Iterator[Attack]:
    """Make `count` of them; the same seed makes the same."""
    rng = random.Random(seed)
    for make in rng.choices(list(CLASSES), weights=list(CLASSES.values()), k=count):
        yield make(rng)
