"""Every Redis key of Forebay, built here and nowhere else.

| pattern                            | type | life                              | written by                     | read by |
| ---------------------------------- | ---- | --------------------------------- | ------------------------------ | ------- |
| `forebay:{POOL}:pressure:INSTANCE` | hash | PEXPIRE, the record's TTL         | the one worker with the epoch  | proxies |
| `forebay:{POOL}:reserved:INSTANCE` | hash | PEXPIRE, the grace period         | proxies; the worker settles    | proxies |
| `forebay:{POOL}:instances`         | hash | expiry in each entry; ten minutes | workers, fenced by epoch       | proxies |
| `forebay:{api-keys}:leases:NAME`   | zset | PEXPIRE, the longest lease        | proxies                        | proxies |
| `forebay:{api-keys}:spent:NAME`    | hash | PEXPIRE, until it has drained     | proxies                        | proxies |

`pressure` has the fields `record` (MessagePack, see bus/record.py), `epoch`, `sequence` and `published_us` (server
time). `reserved` has the sums `tokens`, `requests` and `oldest`, and a field `r:ID` for each reservation in transit (see
bus/lua/prelude.lua). `instances` maps an instance id to `EPOCH;EXPIRES_US;PAYLOAD` (see bus/registration.py); an expired entry is
kept for ten minutes, as the memory of which models this pool served.

`leases` are the requests of one API key in flight, by id, each with its end; `spent` the tokens it has spent of its
limit a minute (see bus/lua/take_key.lua).

The braces are Redis Cluster's hash tag: all keys of one pool live in one slot, so that one script can touch them and one
connection finds them; those of all API keys are together for the same reason.
"""

import re

from bus.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_POOL = re.compile(r"[A-Za-z0-9._-]{1,64}")


def pressure_key(pool: str, instance: str) -> str:
    """Key of one instance's pressure record.

    >>> pressure_key("default", "engine-1")
    'forebay:{default}:pressure:engine-1'
    """
    return f"forebay:{{{_checked_pool(pool)}}}:pressure:{checked_instance(instance)}"


def reserved_key(pool: str, instance: str) -> str:
    """Key of what replicas have reserved at an instance.

    >>> reserved_key("default", "engine-1")
    'forebay:{default}:reserved:engine-1'
    """
    return f"forebay:{{{_checked_pool(pool)}}}:reserved:{checked_instance(instance)}"


def instances_key(pool: str) -> str:
    """Key of a pool's registrations.

    >>> instances_key("default")
    'forebay:{default}:instances'
    """
    return f"forebay:{{{_checked_pool(pool)}}}:instances"


def api_key_keys(name: str) -> tuple[str, str]:
    """Keys of the limits of one API key: leases, spent.

    >>> api_key_keys("team-a")
    ('forebay:{api-keys}:leases:team-a', 'forebay:{api-keys}:spent:team-a')
    """
    checked = _checked_pool(name)  # names of keys are made as those of pools
    return f"forebay:{{api-keys}}:leases:{checked}", f"forebay:{{api-keys}}:spent:{checked}"


def checked_instance(instance: str) -> str:
    """Return `instance`, or raise InvalidName if it cannot be part of a key."""
    if _NAME.fullmatch(instance) is None:
        raise InvalidName(f"instance id {instance[:80]!r}: allowed are 1 to 128 of A-Z a-z 0-9 . _ : -")
    return instance


def _checked_pool(pool: str) -> str:
    if _POOL.fullmatch(pool) is None:
        raise InvalidName(f"pool {pool[:80]!r}: allowed are 1 to 64 of A-Z a-z 0-9 . _ -")
    return pool
