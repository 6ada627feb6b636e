"""The URL of the bus, read into where its servers are and how to log in. No I/O but the certificates it names.

redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/DATABASE]           one server, or the nodes of a cluster
rediss://…?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE         the same over TLS, verified
redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,…]/MASTER[/DATABASE]      whom the sentinels name
rediss+sentinel://…                                                     the same over TLS
unix:///PATH[?db=DATABASE]                                              a socket on this machine
"""

import ssl
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from bus.errors import BusUnavailable

_DEFAULT_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379

_OPTIONS: Final = frozenset(
    {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
)

_EXPECTED: Final = (
    "redis URL: expected redis://[USER:PASSWORD@]HOST:PORT[/DATABASE], rediss://…, unix:///PATH "
    "or redis+sentinel://HOST:PORT,HOST:PORT/MASTER"
)


class Address(msgspec.Struct, frozen=True):
    """Where a server listens: host and port, or the path of a socket."""

    host: str
    port: int = 0
    is_socket: bool = False

    def __str__(self) -> str:
        return self.host if self.is_socket else f"{self.host}:{self.port}"


class BusUrl(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says."""

    servers: tuple[Address, ...]
    """Servers, or sentinels where `master` is set; tried in this order."""
    username: str = ""
    password: str = ""
    database: int = 0
    tls: ssl.SSLContext | None = None
    master: str = ""
    """Name by which sentinels know the master; empty: `servers` are servers."""


def read_url(url: str) -> BusUrl:
    """Read a URL; raises BusUnavailable with a message that repeats no part of it: a password may stand anywhere.

    >>> [str(server) for server in read_url("redis://a:7000,b/2").servers]
    ['a:7000', 'b:6379']
    >>> read_url("redis+sentinel://s1,s2/mymaster").master
    'mymaster'
    """
    try:
        return _read(url)
    except OSError as fault:  # ssl.SSLError is one: a certificate that cannot be read
        raise BusUnavailable(f"redis URL: its certificates cannot be used: {fault.strerror or fault}") from None
    except ValueError:
        raise BusUnavailable(_EXPECTED) from None


def _read(url: str) -> BusUrl:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    if not options.keys() <= _OPTIONS or parts.fragment:
        raise ValueError
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    path = [unquote(step) for step in parts.path.split("/")[1:]]
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError
        servers: tuple[Address, ...] = (Address(unquote(parts.path), is_socket=True),)
        path = []
    elif parts.scheme in ("redis", "rediss", "redis+sentinel", "rediss+sentinel"):
        port = _SENTINEL_PORT if parts.scheme.endswith("sentinel") else _DEFAULT_PORT
        servers = tuple(_address(place, port) for place in places.split(","))
    else:
        raise ValueError
    master = path.pop(0) if parts.scheme.endswith("sentinel") and path else ""
    if parts.scheme.endswith("sentinel") and not master:
        raise ValueError
    return BusUrl(
        servers=servers,
        username=unquote(username),
        password=unquote(password),
        database=int((path[0] if path else "") or options.get("db", "0")),
        tls=_tls(options) if parts.scheme.startswith("rediss") else None,
        master=master,
    )


def _address(place: str, default_port: int) -> Address:
    """`HOST`, `HOST:PORT` or `[IPV6]:PORT`."""
    parts = urlsplit(f"//{place}")
    if not parts.hostname or "@" in place:
        raise ValueError
    return Address(parts.hostname, parts.port or default_port)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    """Verified TLS; the options have the names that Redis clients give them."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs", "required") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif options.get("ssl_check_hostname", "true").lower() == "false":
        context.check_hostname = False
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
