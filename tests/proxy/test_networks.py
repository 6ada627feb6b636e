"""Which workers may be dialled: the allow-list, and names by what they resolve to."""

import logging

import pytest

from bus.hop.errors import CannotConnect
from proxy import uplinks
from proxy.config import ProxyConfig
from proxy.networks import DEFAULT_NETWORKS, Networks, origin_of
from proxy.uplinks import Uplinks


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "10.0.0.5", "172.16.0.1", "192.168.1.1", "::1", "fd12::1", "::ffff:10.0.0.1"]
)
def test_private_and_loopback_addresses_are_allowed_by_default(host):
    """That is where workers are."""
    assert Networks(DEFAULT_NETWORKS).judge(host) == "allowed"


@pytest.mark.parametrize(
    "host",
    [
        "8.8.8.8",
        "169.254.169.254",
        "172.32.0.1",
        "2001:db8::1",
        "::ffff:8.8.8.8",
        "fe80::1",
        "fd00:ec2::254",
        "fd00:ec2::254%1",
        "fd00:0ec2:0::0:23",
        "fd20:ce::254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
    ],
)
def test_everything_else_is_not(host):
    """Public addresses, and those at which clouds serve their credentials."""
    assert Networks(DEFAULT_NETWORKS).judge(host) == "refused"


def test_an_address_of_credentials_is_allowed_only_where_an_entry_is_that_address():
    """A network around it does not mean it."""
    for entries, verdict in {
        ("fd00:ec2::/32", "::/0"): "refused",
        ("fd00:ec2::254/127",): "refused",
        ("fd20:ce::254",): "refused",
        ("fd00:ec2::254",): "allowed",
        ("fc00::/7", "fd00:ec2::254/128"): "allowed",
    }.items():
        assert Networks(entries).judge("fd00:ec2::254") == verdict, entries
    assert Networks(["fc00::/7"]).judge("fd00:ec2::255") == "allowed"


@pytest.mark.parametrize(
    "host", ["worker-1", "localhost", "evil.example", "0x7f.1", "2130706433", "127.1", "010.0.0.1"]
)
def test_a_name_is_as_good_as_what_it_resolves_to(host):
    """Numbers in a strange dress are names too: whatever the resolver makes of them is judged."""
    assert Networks(DEFAULT_NETWORKS).judge(host) == "depends"


def test_names_and_suffixes_can_be_allowed():
    """Whoever lists a name trusts its name server."""
    networks = Networks(["gpu.example", ".svc.cluster.local"])
    for host, verdict in {
        "gpu.example": "allowed",
        "GPU.example.": "allowed",
        "a.gpu.example": "depends",
        "w.ns.svc.cluster.local": "allowed",
        "svc.cluster.local": "depends",
        "evilsvc.cluster.local": "depends",
        "10.0.0.1": "refused",
    }.items():
        assert networks.judge(host) == verdict, host


@pytest.mark.parametrize("entry", ["", ".", "10.0.0.1/8", "10.0.0.0/33", "a b", "http://x", "x:80", "*", "a..b"])
def test_an_entry_that_is_none_is_refused(entry):
    """With the option's name, before anything starts."""
    with pytest.raises(ValueError, match="--worker-networks"):
        ProxyConfig(worker_networks=(entry,))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1:80",
        "ftp://10.0.0.1",
        "http://",
        "http://:80",
        "http://10.0.0.1:0",
        "http://10.0.0.1:99999",
        "http://10.0.0.1:x",
        "http://10.0.0.1@evil.example",
        "http://evil.example\\@10.0.0.1",
        "http://10.0.0.1/path",
        "http://10.0.0.1?x",
        "http://10.0.0.1#x",
        "http://10.0.0.1\r\nx-evil: 1",
        "http://[::1",
        "http://ev\u0131l",
        "http://a..b",
        "http://-",
        "http://a_b!",
        "file:///etc/passwd",
        "unix:///run/docker.sock",
    ],
)
def test_a_url_that_is_no_workers_is_none(url):
    """Two readers of one URL must not see two hosts."""
    assert origin_of(url) is None


def resolving(monkeypatch, **names: list[str]) -> None:
    """Let names resolve to these addresses."""

    async def resolved(host: str, port: int) -> list[str]:
        if host not in names:
            raise OSError("unknown name")
        return names[host]

    monkeypatch.setattr(uplinks, "_resolved", resolved)


async def test_a_name_is_dialled_at_addresses_that_were_checked(monkeypatch):
    """Of several the allowed ones; a name that points outside is not dialled at all, and a listed one as it is."""
    links = Uplinks(ProxyConfig(worker_networks=("10.0.0.0/8", "trusted")))
    resolving(monkeypatch, worker=["8.8.8.8", "10.0.0.7", "::1"], outside=["8.8.8.8"])
    assert await links._addresses("worker", 80) == ["10.0.0.7"]
    assert await links._addresses("trusted", 80) == ("trusted",)
    with pytest.raises(CannotConnect):
        await links._addresses("outside", 80)
    with pytest.raises(CannotConnect):
        await links._addresses("9.9.9.9", 80)


async def test_a_name_that_is_rebound_is_refused_at_the_next_connection(monkeypatch):
    """What was right when it was looked up first is looked up for every connection anew."""
    links = Uplinks(ProxyConfig())
    resolving(monkeypatch, worker=["10.0.0.7"])
    assert await links._addresses("worker", 80) == ["10.0.0.7"]
    resolving(monkeypatch, worker=["169.254.169.254"])
    with pytest.raises(CannotConnect):
        await links._addresses("worker", 80)


async def test_a_name_that_points_outside_is_no_candidate_once_it_was_looked_up(monkeypatch, clock, caplog):
    """It comes back when it points inside again, and a name server that is silent changes nothing."""
    links = Uplinks(ProxyConfig(), clock=clock)
    url = "http://worker:80"
    resolving(monkeypatch, worker=["8.8.8.8"])
    assert links.admits(url)
    with caplog.at_level(logging.WARNING, "forebay.proxy"):
        for _ in range(3):
            await links.look_up()
            assert not links.admits(url)
        resolving(monkeypatch)
        clock.move(20)
        await links.look_up()
        assert not links.admits(url)
    assert (links.refusals, len(caplog.records)) == (1, 1)
    resolving(monkeypatch, worker=["10.0.0.1"])
    clock.move(20)
    await links.look_up()
    assert links.admits(url)


async def test_names_that_nobody_asks_for_are_forgotten(monkeypatch, clock):
    """Whoever forges registrations fills no memory, and asks no name server for ever."""
    links = Uplinks(ProxyConfig(), clock=clock)
    resolving(monkeypatch)
    for number in range(5_000):
        links.admits(f"http://worker-{number}:80")
        links.admits(f"http://8.8.8.8:{number + 1}")
    assert len(links._names) == len(links._refused) == 4096
    clock.move(100)
    await links.look_up()
    assert not links._names


def test_with_a_ca_for_workers_none_without_tls_is_admitted(tmp_path):
    """A forged registration must not turn the encryption off."""
    import trustme

    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    links = Uplinks(ProxyConfig(worker_ca=str(tmp_path / "ca.pem")))
    assert links.admits("https://10.0.0.1:80")
    assert not links.admits("http://10.0.0.1:80")
