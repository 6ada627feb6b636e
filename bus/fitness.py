"""Whether a server can be the bus, tried at the start: a managed Redis may lack a part of what the scripts need.

Knows the difference between a server that cannot and one that does not answer now: the latter may pass.
"""

from typing import Final

from redis.exceptions import ResponseError

from bus.errors import BusUnavailable, BusUnfit
from bus.keys import pressure_key
from bus.scripts import Commands, Script

#: What an administrator can act upon, in one line.
NEEDED: Final = (
    "needed are SCRIPT LOAD, EVALSHA and, inside scripts, TIME and commands on hashes and expiry, as Redis 7.0 and "
    "Valkey 7.2 have them; a user of its own needs +script|load +evalsha +time, and commands on hashes, sorted sets "
    "and expiry, on ~forebay:*"
)

#: Codes with which a server refuses for good; others (LOADING, READONLY, CLUSTERDOWN, OOM) pass.
_FOR_GOOD: Final = ("ERR", "NOPERM")


async def refused(client: Commands, pool: str) -> str:
    """What the server will not do, in its own words; empty if it does everything, or does not answer now."""
    try:
        reply: list[bytes] = await Script(client, "probe")([pressure_key(pool, "forebay-probe")], [])
    except BusUnavailable as fault:
        if not isinstance(fault.__cause__, ResponseError):
            return ""
        complaint, command = str(fault.__cause__), ""
    else:
        if not reply:
            return ""
        command, complaint = f"{reply[0].decode()} in scripts: ", reply[1].decode(errors="replace")
    return f"{command}{complaint}" if complaint.startswith(_FOR_GOOD) else ""


async def demand_fitness(client: Commands, pool: str) -> None:
    """Raise BusUnfit if the server answers and cannot be the bus."""
    if complaint := await refused(client, pool):
        raise BusUnfit(f"this Redis cannot be the bus: {' '.join(complaint.split())}; {NEEDED}")
