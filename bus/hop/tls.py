"""TLS of both ends of a hop: what a listener shows, and whom a client believes. TLS 1.2 or newer, always verified."""

import asyncio
import ipaddress
import logging
import ssl
from typing import Final

from bus.errors import ForebayError
from bus.hop.stamp import Stamp, stamp_of

log = logging.getLogger("forebay.tls")

#: Between two looks whether a certificate has changed, s.
LOOK_S: Final = 1.0


class TlsUnusable(ForebayError):
    """A certificate, key or CA file that cannot be used."""


class Certificate:
    """What listeners show: a certificate chain and its key, PEM files. Raises TlsUnusable.

    Files that change are read again, and new connections get the new ones; a pair that cannot be used, such as a
    certificate whose key is not there yet, leaves the last one in force.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._is_broken = False
        self._seen = self._stamps()
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        """What a listener speaks."""

    async def keep(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they are not those read last; what cannot be used is told of once."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a pair that does not fit would spoil the one in use
            self._load(self.context)
        except TlsUnusable as fault:
            if not self._is_broken:
                log.error("%s: the certificate read before stays in use", fault)  # noqa: TRY400 - no fault of ours
            self._is_broken = True
        else:
            self._is_broken = False
            log.info("TLS certificate %r: read again", self._cert)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (OSError, ValueError) as fault:  # SSLError is an OSError
            names = f"TLS certificate {self._cert!r} and key {self._key!r}"
            raise TlsUnusable(f"{names} cannot be used: {_why(fault)}") from fault
        return context

    def _stamps(self) -> list[Stamp | None]:
        return [_stamp(path) for path in (self._cert, self._key)]


def certificate(cert: str, key: str) -> Certificate | None:
    """The certificate that is configured; None: no TLS. Raises TlsUnusable."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise TlsUnusable("TLS needs both, a certificate and a key: only one is named")
    return Certificate(cert, key)


def client_tls(ca: str = "") -> ssl.SSLContext:
    """Verifies the other side by the CAs of a PEM file, or by those of this machine. Raises TlsUnusable."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as fault:
        raise TlsUnusable(f"CA file {ca!r} cannot be used: {_why(fault)}") from fault


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(path)
    except OSError:
        return None  # reading it says why


def _no_password() -> str:
    """A key that is encrypted is refused; OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")


def _why(fault: Exception) -> str:
    return str(getattr(fault, "reason", None) or getattr(fault, "strerror", None) or fault)
