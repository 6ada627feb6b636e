"""API keys of clients: how a file of them reads, whose key a request shows, and what one replica counts by itself.

Pure: no files, no clock, no chance. A key is 256 random bits, so a plain SHA-256 of it is stored: there is nothing to
guess that a slow hash would slow down, and every request hashes once. (Passwords, which people choose, need scrypt.)

A line of the file: `NAME sha256:HEX [inflight=N] [tokens_per_minute=N] [priority=P]`; empty lines and those with # are
skipped.
"""

import hmac
import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from bus.errors import ForebayError
from bus.hop.headers import PRIORITIES, Priority
from bus.key_limits import Limits, Verdict

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
NAME_RANGE: Final = "1 to 64 of A-Z a-z 0-9 . _ -"
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")

#: Largest limit that a line may set.
LARGEST_LIMIT: Final = 10**12


class KeysUnusable(ForebayError):
    """A file of keys with a line that is none; says which and why, never what stands there."""


class ApiKey(msgspec.Struct, frozen=True):
    """One client, as the file names it."""

    name: str
    digest: bytes
    limits: Limits = Limits()
    priority: Priority = PRIORITIES[0]
    """The best class of its requests, whatever they wish for."""

    @property
    def is_limited(self) -> bool:
        """Whether anything has to be counted for it."""
        return self.limits != Limits()


def digest_of(key: str) -> bytes:
    """What is stored of a key."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def line_of(name: str, key: str, limits: Limits, priority: Priority = PRIORITIES[0]) -> str:
    """Line of the file for a new key.

    >>> parse_keys(line_of("team-a", "fb-secret", Limits(inflight=4)))[0].limits.inflight
    4
    """
    set_limits = [f"{field}={value}" for field in limits.__struct_fields__ if (value := getattr(limits, field))]
    set_priority = [f"priority={priority}"] if priority != PRIORITIES[0] else []
    return " ".join([name, f"sha256:{digest_of(key).hex()}", *set_limits, *set_priority])


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Keys of a file. Raises KeysUnusable."""
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if words:
            keys.append(_parsed(number, words))
    for what, values in (("name", [key.name for key in keys]), ("key", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise KeysUnusable(f"the same {what} stands there twice")
    return tuple(keys)


def find_key(keys: Iterable[ApiKey], shown: str) -> ApiKey | None:
    """Whose key was shown; None: nobody's. Every key is compared, each in constant time, found or not."""
    digest, found = digest_of(shown), None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


class OwnCounts:
    """What this replica has let in by itself: the limits while the bus is silent. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._inflight: Counter[str] = Counter()
        self._spent: dict[str, tuple[float, float]] = {}

    def judge(self, key: ApiKey, tokens: int, now_s: float) -> Verdict:
        """Whether the limits allow one more request of `tokens` tokens."""
        limits = key.limits
        if limits.inflight and self._inflight[key.name] >= limits.inflight:
            return Verdict(False, "inflight", 1.0)
        excess = self._left(key, now_s) - max(0, limits.tokens_per_minute - tokens)
        if limits.tokens_per_minute and tokens and excess > 0:
            return Verdict(False, "tokens_per_minute", excess * 60 / limits.tokens_per_minute)
        return Verdict(True)

    def take(self, key: ApiKey, tokens: int, now_s: float) -> None:
        """One request was let in."""
        self._inflight[key.name] += 1
        self._spend(key, tokens, now_s)

    def settle(self, key: ApiKey, correction: int, now_s: float) -> None:
        """One request has ended; it spent `correction` tokens beyond those taken."""
        self._inflight[key.name] -= 1
        if self._inflight[key.name] <= 0:
            del self._inflight[key.name]
        self._spend(key, correction, now_s)

    def inflight(self, name: str) -> int:
        """Requests of a key that this replica has in flight."""
        return self._inflight.get(name, 0)

    def _left(self, key: ApiKey, now_s: float) -> float:
        spent, at_s = self._spent.get(key.name, (0.0, now_s))
        return max(0.0, spent - key.limits.tokens_per_minute * (now_s - at_s) / 60)

    def _spend(self, key: ApiKey, tokens: int, now_s: float) -> None:
        left = max(0.0, self._left(key, now_s) + tokens)
        if key.limits.tokens_per_minute and left:
            self._spent[key.name] = left, now_s
        else:
            self._spent.pop(key.name, None)


def _parsed(number: int, words: list[str]) -> ApiKey:
    """One line, in words. Raises KeysUnusable."""
    if NAME.fullmatch(words[0]) is None:
        raise KeysUnusable(f"line {number}: the name must be {NAME_RANGE}")
    found = _HASH.fullmatch(words[1]) if len(words) > 1 else None
    if found is None:
        raise KeysUnusable(f"line {number}: after the name must stand sha256: and 64 hexadecimal digits")
    pairs = [word.partition("=")[::2] for word in words[2:]]
    settings = dict(pairs)
    priority = next((known for known in PRIORITIES if known == settings.get("priority", PRIORITIES[0])), None)
    numbers = {name: _number(value) for name, value in settings.items() if name in Limits.__struct_fields__}
    is_known = settings.keys() <= {*Limits.__struct_fields__, "priority"}
    if priority is None or not is_known or not all(numbers.values()) or len(settings) < len(pairs):
        raise KeysUnusable(
            f"line {number}: limits are inflight=N, tokens_per_minute=N and priority=P, each once, "
            f"N from 1 to {LARGEST_LIMIT}, P one of {', '.join(PRIORITIES)}"
        )
    return ApiKey(words[0], bytes.fromhex(found[1]), Limits(**numbers), priority)


def _number(text: str) -> int:
    """A limit that a line sets; 0 for what is none."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_LIMIT))
    return int(text) if is_number and int(text) <= LARGEST_LIMIT else 0
