"""Who serves an instance and where: the entry of the `instances` hash. No Redis, no clock.

In Redis an entry is `EPOCH;EXPIRES_US;` (written by the script, in server time, so that Lua can compare them without
decoding) followed by the MessagePack map below.
"""

from typing import Final, Literal

import msgspec

RegistrationState = Literal["ready", "draining", "gone"]

#: An expired entry stays this long, as the memory of which models a pool served lately.
REMEMBERED_MS: Final = 600_000


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as its queue worker announces it."""

    worker_url: str
    """What proxies dial: http://host:port, without a path."""
    engine_url: str
    models: tuple[str, ...] = ()
    kind: str = "openai"
    slots: int = 1
    """Requests that run at once on the engine."""
    state: RegistrationState = "ready"
    ttl_ms: int = 1500
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
    try:
        epoch, expires_us, payload = raw.split(b";", 2)
        return RegistrationEntry(int(epoch), int(expires_us), _decode(payload))
    except (ValueError, msgspec.DecodeError):  # DecodeError covers ValidationError
        return None
