"""How an engine is named on the command line: `[ID=]URL`."""

import re
from urllib.parse import SplitResult, urlsplit

from workers.config import InstanceConfig

ALLOWED = "[ID=]URL, as in http://10.0.0.5:8000 or big=http://10.0.0.5:8000; ID of letters, digits, . _ - (at most 64)"

IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,64}")

DEFAULT_PORTS = {"http": 80, "https": 443}


def parsed_engine(text: str) -> InstanceConfig:
    """Return the instance a text names; without an id it is called after its host and port. Raises ValueError.

    The `/v1` with which clients are told the URL may stand there: it is part of every path anyway.

    >>> parsed_engine("http://10.0.0.5:8000/")
    InstanceConfig(id='10.0.0.5-8000', engine_url='http://10.0.0.5:8000')
    >>> parsed_engine("big=https://gpu.example/v1")
    InstanceConfig(id='big', engine_url='https://gpu.example')
    """
    head, sign, tail = text.partition("=")
    has_id = bool(sign) and "://" not in head
    url = (tail if has_id else text).strip().rstrip("/").removesuffix("/v1")
    parts = split(url)
    identity = head.strip() if has_id else slug(parts)
    if not IDENTIFIER.fullmatch(identity):
        raise ValueError(ALLOWED)
    return InstanceConfig(id=identity, engine_url=url)


def split(url: str) -> SplitResult:
    """Return the parts of an http or https URL with a host; raises ValueError."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(ALLOWED) from error
    if not is_whole or parts.query or parts.fragment or "@" in parts.netloc or any(sign.isspace() for sign in url):
        raise ValueError(ALLOWED)
    return parts


def slug(parts: SplitResult) -> str:
    """Return the id of an engine that was given none: host-port.

    >>> slug(urlsplit("http://[::1]:8000"))
    '--1-8000'
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", parts.hostname or "")
    return f"{host}-{parts.port or DEFAULT_PORTS[parts.scheme]}"[-64:]


def repeated(instances: tuple[InstanceConfig, ...]) -> str:
    """Return an id that two engines have, or nothing."""
    seen: set[str] = set()
    for instance in instances:
        if instance.id in seen:
            return instance.id
        seen.add(instance.id)
    return ""
