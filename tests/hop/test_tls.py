"""A certificate that is renewed, or spoilt, under a listener that runs."""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

import pytest
import trustme

from bus.hop.tls import Certificate, TlsUnusable, certificate

HOST = "127.0.0.1"


class Authority:
    """Issues certificates for loopback into two files."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.context = ssl.create_default_context()
        self._ca.configure_trust(self.context)

    def issue(self, *, with_key: bool = True) -> bytes:
        """Write a new pair, or a new certificate whose key is not there yet; what clients are shown."""
        made = self._ca.issue_cert(HOST)
        self.cert.write_bytes(made.cert_chain_pems[0].bytes())
        if with_key:
            self.key.write_bytes(made.private_key_pem.bytes())
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())


@pytest.fixture
def authority(tmp_path) -> Authority:
    """Give an authority whose first pair is written."""
    one = Authority(tmp_path)
    one.issue()
    return one


@contextlib.asynccontextmanager
async def listening(shown: Certificate):
    """A listener that shows it; what is given asks what a new connection is shown."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0, ssl=shown.context)
    port = server.sockets[0].getsockname()[1]

    async def seen(authority: Authority) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=authority.context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await reader.read()
        writer.close()
        return der

    async with server:
        yield seen


async def test_a_renewed_certificate_is_shown_to_new_connections(authority):
    """Without a restart, and by the same listener."""
    shown = Certificate(str(authority.cert), str(authority.key))
    async with listening(shown) as seen:
        first, renewed = await seen(authority), authority.issue()
        assert first != renewed
        assert await seen(authority) == first
        shown.refresh()
        assert await seen(authority) == renewed


async def test_what_cannot_be_used_leaves_the_one_before_and_says_so_once(authority, caplog):
    """A certificate whose key is not there yet, half a file, none at all: until a pair fits again."""
    shown = Certificate(str(authority.cert), str(authority.key))
    async with listening(shown) as seen:
        first = await seen(authority)
        with caplog.at_level(logging.INFO, "forebay.tls"):
            authority.issue(with_key=False)
            shown.refresh()
            authority.key.write_text("-----BEGIN")
            shown.refresh()
            authority.key.unlink()
            shown.refresh()
            shown.refresh()
            assert await seen(authority) == first
            renewed = authority.issue()
            shown.refresh()
            assert await seen(authority) == renewed
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


async def test_changes_are_looked_for(authority, monkeypatch):
    """By a task of whoever listens."""
    monkeypatch.setattr("bus.hop.tls.LOOK_S", 0.001)
    shown = Certificate(str(authority.cert), str(authority.key))
    keeping = asyncio.create_task(shown.keep())
    async with listening(shown) as seen, asyncio.timeout(10):
        renewed = authority.issue()
        while await seen(authority) != renewed:
            pass
    keeping.cancel()


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_a_listener_does_not_start_without_what_it_was_told_of(authority, missing):
    """The file is named."""
    getattr(authority, missing).unlink()
    with pytest.raises(TlsUnusable, match=f"{missing}.pem"):
        certificate(str(authority.cert), str(authority.key))


def test_one_of_two_is_none():
    """And neither is no TLS."""
    assert certificate("", "") is None
    with pytest.raises(TlsUnusable, match="only one"):
        certificate("a", "")
