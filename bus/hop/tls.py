"""TLS of both ends of a hop: what a listener shows, and whom a client believes. TLS 1.2 or newer, always verified."""

import ipaddress
import ssl

from bus.errors import ForebayError


class TlsUnusable(ForebayError):
    """A certificate, key or CA file that cannot be used."""


def server_tls(cert: str, key: str) -> ssl.SSLContext | None:
    """What a listener speaks with a certificate chain and its key, PEM files; None: no TLS. Raises TlsUnusable."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise TlsUnusable("TLS needs both, a certificate and a key: only one is named")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as fault:  # SSLError is an OSError
        raise TlsUnusable(f"TLS certificate {cert!r} and key {key!r} cannot be used: {_why(fault)}") from fault
    return context


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


def _no_password() -> str:
    """A key that is encrypted is refused; OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")


def _why(fault: Exception) -> str:
    return str(getattr(fault, "reason", None) or getattr(fault, "strerror", None) or fault)
