"""Which workers a replica may dial: an allow-list of networks and host names. Pure: names are resolved elsewhere.

Registrations come from the bus, and whoever can write there could point one anywhere: prompts would follow.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

#: Private and loopback addresses. Link-local ones are not among them: clouds serve their credentials there.
DEFAULT_NETWORKS: Final = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
)

#: Addresses at which clouds serve credentials though they look private: only an entry that is one of them admits it.
_METADATA: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS, to pods
            "fd20:ce::254",  # Google
        ),
    )
)

Verdict = Literal["allowed", "refused", "depends"]
"""`depends`: a host name, which is as good as the addresses it resolves to."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Origin(msgspec.Struct, frozen=True):
    """Where a worker says it listens."""

    host: str
    is_tls: bool


class Networks:
    """An allow-list: networks (10.0.0.0/8), addresses, host names (worker-1) and suffixes (.svc.cluster.local).

    Raises ValueError for an entry that is none of these.

    >>> networks = Networks(["10.0.0.0/8", ".internal"])
    >>> networks.judge("10.1.2.3"), networks.judge("8.8.8.8"), networks.judge("gpu.internal"), networks.judge("gpu")
    ('allowed', 'refused', 'allowed', 'depends')
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._networks: list[_Network] = []
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        for entry in entries:
            self._add(entry.strip().lower())

    def judge(self, host: str) -> Verdict:
        """Whether a host of a worker's URL may be dialled."""
        name = host.lower().rstrip(".")
        address = _address(name)
        if address is not None:
            return "allowed" if self.covers(name) else "refused"
        if name in self._names or name.endswith(tuple(self._suffixes)):
            return "allowed"
        return "depends"

    def covers(self, address: str) -> bool:
        """Whether an address is in one of the networks.

        >>> Networks(["127.0.0.0/8"]).covers("::ffff:127.0.0.1"), Networks(["::/0"]).covers("::ffff:8.8.8.8")
        (True, False)
        """
        found = _address(address)
        if found is None or any(found in one and one not in self._networks for one in _METADATA):
            return False
        return any(found in network for network in self._networks)

    def _add(self, entry: str) -> None:
        if "/" in entry or _address(entry) is not None:
            self._networks.append(ipaddress.ip_network(entry))
            return
        name = entry.removeprefix(".")
        if not name or not all(part and _is_label(part) for part in name.split(".")):
            raise ValueError(f"{entry!r} is neither a network, an address nor a host name")
        if entry.startswith("."):
            self._suffixes.append(entry)
        else:
            self._names.add(name)


def origin_of(worker_url: str) -> Origin | None:
    """Host of a worker's URL; None for what is no plain http://HOST:PORT or https://HOST:PORT.

    >>> origin_of("https://[fd00::1]:8443").host, origin_of("http://10.0.0.1@evil.example")
    ('fd00::1', None)
    """
    if not worker_url.isascii() or not worker_url.isprintable() or any(sign in worker_url for sign in " \\@?#"):
        return None
    try:
        parts = urlsplit(worker_url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.path not in ("", "/"):
        return None
    if _address(parts.hostname) is None and not all(map(_is_label, parts.hostname.removesuffix(".").split("."))):
        return None
    return Origin(parts.hostname, parts.scheme == "https")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; an IPv4 one in IPv6's clothes is an IPv4 one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_label(part: str) -> bool:
    return len(part) <= 63 and part.replace("-", "").replace("_", "").isalnum() and part.isascii()
