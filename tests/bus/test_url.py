import ssl

import pytest
import trustme

from bus.errors import BusUnavailable
from bus.url import Address, read_url


def test_a_plain_url_names_server_login_and_database():
    """What stands in it is decoded, and nothing else is set."""
    url = read_url("redis://us%40er:p%2Fw@bus.local:7000/3")

    assert url.servers == (Address("bus.local", 7000),)
    assert (url.username, url.password, url.database) == ("us@er", "p/w", 3)
    assert (url.tls, url.master) == (None, "")


def test_a_password_alone_is_that_of_the_default_user():
    """`redis://:pw@host` logs in without a name."""
    url = read_url("redis://:pw@host")
    assert (url.username, url.password) == ("", "pw")


def test_several_servers_are_kept_in_order_with_the_usual_port():
    """A cluster's seeds, IPv6 among them."""
    url = read_url("redis://a,b:7001,[::1]:7002")
    assert url.servers == (Address("a", 6379), Address("b", 7001), Address("::1", 7002))


def test_a_sentinel_url_names_the_master_and_the_sentinels_port():
    """The path is the master, then the database."""
    url = read_url("redis+sentinel://:pw@s1,s2:26380/mymaster/2")
    assert url.servers == (Address("s1", 26379), Address("s2", 26380))
    assert (url.master, url.database, url.password) == ("mymaster", 2, "pw")


def test_a_unix_url_is_a_path():
    """With the database as an option."""
    url = read_url("unix:///run/redis.sock?db=1")
    assert url.servers == (Address("/run/redis.sock", is_socket=True),)
    assert url.database == 1


def test_tls_is_verified_unless_told_otherwise(tmp_path):
    """The authority comes from a file; checking can be switched off, for the name alone or altogether."""
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(authority)

    verified = read_url(f"rediss://bus?ssl_ca_certs={authority}").tls
    nameless = read_url("rediss://bus?ssl_check_hostname=false").tls
    unverified = read_url("rediss://bus?ssl_cert_reqs=none").tls

    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (nameless.verify_mode, nameless.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert unverified.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://host:port",
        "redis://host/database",
        "redis://host?pool=5",
        "redis+sentinel://s1,s2",
        "unix://",
        "memcached://host",
        "redis://a,,b",
        "redis://host:99999",
    ],
)
def test_what_is_no_url_of_a_bus_is_refused(url):
    """One message that shows the forms there are."""
    with pytest.raises(BusUnavailable, match="expected redis://"):
        read_url(url)


def test_certificates_that_cannot_be_read_are_said_to_be_so():
    """A missing file is not a malformed URL."""
    with pytest.raises(BusUnavailable, match="certificates cannot be used"):
        read_url("rediss://bus?ssl_ca_certs=/nowhere/ca.pem")
