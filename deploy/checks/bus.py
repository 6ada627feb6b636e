"""Whether a server can be the bus: reachable, new enough, and willing to run scripts that ask it for the time."""

import re

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from bus.client import connect
from bus.errors import BusUnavailable
from bus.fitness import NEEDED, refused
from bus.link import Link
from deploy.allowed import PASSWORD
from deploy.checks.finding import Finding, note, right, wrong

ANSWER_S = 2.0

OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}


async def check_bus(url: str) -> list[Finding]:
    """Return what is right and wrong with the server at a URL."""
    subject = f"bus {PASSWORD.sub(':***@', url)}"
    try:
        client = connect(url, timeout_s=ANSWER_S)
    except BusUnavailable as error:
        return [wrong(subject, str(error), "write it as redis://HOST:PORT/0, rediss://… or unix:///PATH")]
    try:
        info = await info_of(client)
        if info is None:
            unknown = note(subject, "does not tell this user its version", "nothing, if it is new enough")
            return [unknown, await script_finding(subject, client)]
        return [
            version_finding(subject, info),
            await script_finding(subject, client),
            *eviction_findings(subject, info),
        ]
    except AuthenticationError as error:
        return [wrong(subject, str(error), "put user and password into the URL, redis://USER:PASSWORD@HOST:PORT/0")]
    except (RedisError, OSError, TimeoutError) as error:
        text = f"no answer: {error or type(error).__name__}"
        return [wrong(subject, text, "start a server there or name another with --redis; `forebay up` brings its own")]
    finally:
        await client.aclose()


def read_info(page: bytes) -> dict[str, str]:
    """Fields of an INFO page.

    >>> read_info(b"# Server\\r\\nredis_version:7.0.15\\r\\n")
    {'redis_version': '7.0.15'}
    """
    lines = page.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def version_finding(subject: str, info: dict[str, str]) -> Finding:
    """Return whether the server is new enough, by its INFO.

    >>> version_finding("bus", {"redis_version": "6.2.7"}).verdict
    'wrong'
    >>> version_finding("bus", {"redis_version": "7.2.4", "valkey_version": "8.1.0"}).text
    'Valkey 8.1.0'
    """
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "of unknown version")
    digits = re.match(r"(\d+)\.(\d+)", version)
    oldest = OLDEST[product]
    if digits and (int(digits[1]), int(digits[2])) >= oldest:
        return right(subject, f"{product} {version}")
    return wrong(subject, f"{product} {version}", f"{product} {oldest[0]}.{oldest[1]} or newer is needed")


async def info_of(client: Link) -> dict[str, str] | None:
    """What a server says of itself; None if its rules for this user do not allow to ask, as the minimal ones do not."""
    try:
        return read_info(await client.execute_command("INFO"))
    except NoPermissionError:
        return None


async def script_finding(subject: str, client: Link) -> Finding:
    """Return whether the scripts find what they need."""
    complaint = await refused(client, "forebay-check")
    return wrong(subject, complaint, NEEDED) if complaint else right(subject, "scripts find all they need")


def eviction_findings(subject: str, info: dict[str, str]) -> list[Finding]:
    """Return a note where a full server would throw the fleet's records away."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory", "0") == "0":
        return []
    return [
        note(
            subject,
            f"evicts keys when full ({policy})",
            "set maxmemory-policy noeviction, or give it a server of its own",
        )
    ]
