"""Who serves an instance and where: the entry of the `instances` hash. No Redis, no clock.

In Redis an entry is `EPOCH;EXPIRES_US;` (written by the script, in server time, so that Lua can compare them without
decoding) followed by the MessagePack map below.
"""

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from bus.record import LARGEST

RegistrationState = Literal["ready", "draining", "gone"]

#: An expired entry stays this long, as the memory of which models a pool served lately.
REMEMBERED_MS: Final = 600_000

#: An entry is some hundred bytes; whatever is larger was not written by a queue worker and is not sent to readers.
MAX_ENTRY_BYTES: Final = 65_536

Positive = Annotated[int, Meta(ge=1, le=LARGEST)]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as its queue worker announces it."""

    worker_url: str
    """What proxies dial: http://host:port, without a path."""
    engine_url: str
    models: tuple[str, ...] = ()
    kind: str = "openai"
    slots: Positive = 1
    """Requests that run at once on the engine."""
    queue_limit: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None
    """Requests that may wait there for a slot; None: not told."""
    context_tokens: Positive | None = None
    """Most tokens of a prompt and its answer together; None: not told."""
    state: RegistrationState = "ready"
    ttl_ms: Positive = 1500
    """Life of the pressure record: older than this it is unknown."""

    @property
    def heartbeat_ms(self) -> float:
        """Longest time between two publishes of a living worker, ms."""
        return self.ttl_ms / 3


class RegistrationEntry(msgspec.Struct, frozen=True):
    """A registration as it stands in the hash: fenced by epoch, with an end in server time."""

    epoch: int
    expires_us: int
    registration: Registration


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Registration).decode
_ENTRY: Final = re.compile(rb"(\d{1,16});(\d{1,16});(.*)", re.DOTALL)


def encode_registration(registration: Registration) -> bytes:
    """MessagePack bytes of what a worker announces."""
    return _encode(registration)


def decode_entry(raw: bytes) -> RegistrationEntry | None:
    """Read one value of the `instances` hash; None if it is not one.

    >>> entry = decode_entry(b"7;1500;" + encode_registration(Registration(worker_url="http://w", engine_url="http://e")))
    >>> entry.epoch, entry.expires_us, entry.registration.worker_url
    (7, 1500, 'http://w')
    >>> decode_entry(b"rubbish") is None
    True
    """
    found = _ENTRY.fullmatch(raw)
    if found is None:
        return None
    epoch, expires_us, payload = found.groups()
    try:
        registration = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # DecodeError covers ValidationError
        return None
    texts = (registration.worker_url, registration.engine_url, registration.kind, *registration.models)
    if not all(map(str.isprintable, texts)):  # they stand in logs and on terminals
        return None
    return RegistrationEntry(int(epoch), int(expires_us), registration)
