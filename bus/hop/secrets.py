"""Secrets that two sides share: read from a file, compared in constant time, never shown."""

import hmac
from hashlib import sha256
from pathlib import Path
from typing import Final

from bus.errors import ForebayError

#: A secret is made by a machine: `openssl rand -hex 32`. Shorter ones can be guessed.
SHORTEST: Final = 16


class SecretUnusable(ForebayError):
    """A file that holds no secret."""


class Secret:
    """One secret. It has no `repr` that tells it."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._digest = sha256(value).digest()

    def is_known_to(self, given: str | None) -> bool:
        """Whether `given` is the secret; how long the answer takes tells nothing of it.

        >>> Secret(b"0123456789abcdef").is_known_to("0123456789abcdeX")
        False
        """
        digest = sha256((given or "").encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)

    def reveal(self) -> bytes:
        """The secret itself, for the header that carries it."""
        return self._value

    def __repr__(self) -> str:
        return "<Secret>"


def read_secret(path: str) -> Secret | None:
    """Secret on the first line of a file; None without a path. Raises SecretUnusable, which names no value."""
    if not path:
        return None
    try:
        line = Path(path).read_text(encoding="ascii").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "not ASCII text"
        raise SecretUnusable(f"secret file {path!r} cannot be read: {reason}") from fault
    if len(line) < SHORTEST or not line.isprintable() or " " in line:
        raise SecretUnusable(f"secret file {path!r}: the first line must have {SHORTEST} printable characters or more")
    return Secret(line.encode())


def bearer(authorization: str | None) -> str | None:
    """Token of an Authorization header of scheme Bearer.

    >>> bearer("bearer abc"), bearer("Basic abc"), bearer(None)
    ('abc', None, None)
    """
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
