"""TLS on every hop, the Redis ACL rule, a wrong password, and no word of a client in anything that is written."""

import asyncio
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio as redis_asyncio
import trustme
from redis.exceptions import ResponseError

from bus.key_limits import Limits
from deploy.embedded import EmbeddedServer
from deploy.ports import free_ports
from proxy.keys import line_of
from tests.processes.fleet import Fleet, Replica, fetch, until
from tests.servers import BINARIES, REAL, everything_on, redis_binary

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
MARKER = "zinnia-quagga-0815-prompt"
PASSWORD = "a-password-of-the-bus"  # noqa: S105 - of this test only
PAGE = Path(__file__).parents[2] / "deploy/docs/redis.md"


def rule_of(user: str) -> list[str]:
    """The ACL rule that the documentation gives for a user."""
    found = re.search(rf"^ACL SETUSER {user} (.+)$", PAGE.read_text(), re.MULTILINE)
    assert found, user
    return found[1].replace("PASSWORD", PASSWORD).split()


def raw_client(url: str) -> redis_asyncio.Redis:
    """A client that gives what COMMAND answers as it came: the library stumbles over subcommands."""
    client = redis_asyncio.Redis.from_url(url)
    client.set_response_callback("COMMAND", lambda raw, **_: raw)
    return client


async def is_known(client: redis_asyncio.Redis, word: str) -> bool:
    """Whether a server has the command that a word of a rule allows."""
    return not word.startswith("+") or await info_of(client, word[1:]) is not None


async def info_of(client: redis_asyncio.Redis, name: str) -> list[Any] | None:
    """What a server says of one of its commands; None if it has none of this name."""
    [info] = await client.execute_command("COMMAND", "INFO", name)
    return info


class GuardedFleet(Fleet):
    """A fleet whose bus knows two users, with the rules that the documentation gives, and nobody else."""

    def __enter__(self) -> "GuardedFleet":
        super().__enter__()
        asyncio.run(self._guard())
        return self

    async def _guard(self) -> None:
        admin = raw_client(self.bus.url)
        for user in ("forebay-proxy", "forebay-worker"):
            words = [word for word in rule_of(user) if await is_known(admin, word)]
            assert len(rule_of(user)) - len(words) <= 1  # Redis 7.0 has no CLIENT SETINFO
            assert await admin.execute_command("ACL", "SETUSER", user, *words)
        await admin.execute_command("ACL", "SETUSER", "admin", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        await admin.execute_command("ACL", "SETUSER", "default", "off")
        await admin.aclose()

    def url_of(self, user: str, password: str = PASSWORD) -> str:
        """The bus, for one user."""
        return self.bus.url.replace("://", f"://{user}:{password}@")


@pytest.fixture(params=REAL)
def guarded(request, tmp_path) -> Iterator[GuardedFleet]:
    """Give a bus with the rules on each kind of server, and nothing started."""
    binary, why_not = BINARIES[request.param]
    if binary() is None:
        pytest.skip(why_not)
    fleet = GuardedFleet(tmp_path)
    fleet.bus = EmbeddedServer(binary=binary())
    with fleet:
        yield fleet


async def test_with_the_acl_rules_everything_works_and_nothing_else_may(guarded, http, tmp_path):
    """Workers and replicas do all they do; each command that the rules do not name is refused."""
    (tmp_path / "keys").write_text(line_of("a", "secret-a", Limits(inflight=5, tokens_per_minute=10**6)))

    patient = ["--read-budget-ms", "5000"]  # a busy machine is no fault of the rule

    def start() -> None:
        [engine] = guarded.start_engines("--speed", "20")
        guarded.start_worker("i1", engine, "--redis", guarded.url_of("forebay-worker"))
        guarded.start_replica(
            "--redis", guarded.url_of("forebay-proxy"), *patient, "--api-keys", str(tmp_path / "keys")
        )
        guarded.wait()

    await asyncio.to_thread(start)
    [replica] = guarded.replicas
    headers = {"authorization": "Bearer secret-a"}
    for stream in (False, True):
        async with http.post(f"{replica.url}{CHAT}", json={**BODY, "stream": stream}, headers=headers) as answer:
            assert answer.status == 200
            await answer.read()
    await asyncio.to_thread(guarded.wait_until_idle)
    assert replica.metric("forebay_reservations_total", outcome="failed") == 0
    assert replica.metric("forebay_key_limit_failures_total") == 0
    assert replica.bus_state() == "fresh"
    for part in guarded.parts:
        assert "NOPERM" not in part.text.upper()
        assert PASSWORD not in part.text

    admin = raw_client(guarded.url_of("admin"))
    for user in ("forebay-proxy", "forebay-worker"):
        named = {word[1:].replace("|", " ").upper() for word in rule_of(user) if word.startswith("+")}
        allowed, refused = await split_by_rule(admin, user)
        assert allowed <= named | {"AUTH", "HELLO", "QUIT", "RESET"}  # these every connection may
        assert len(refused) > 200
        for key in ("other", "forebay", "xforebay:{default}:instances"):
            assert await admin.execute_command("ACL", "DRYRUN", user, "HGET", key, "f") != b"OK"
    await admin.aclose()


async def split_by_rule(client: redis_asyncio.Redis, user: str) -> tuple[set[str], set[str]]:
    """Of all commands of a server and their subcommands those that a user may run, and those that it may not."""
    names = [name.decode() for name in await client.execute_command("COMMAND", "LIST")]
    containers = {name.partition("|")[0] for name in names if "|" in name}
    allowed, refused = set(), set()
    for name in names:
        words = name.split("|")
        try:
            verdict = await client.execute_command("ACL", "DRYRUN", user, *words, *await arguments(client, words))
        except ResponseError:  # a name that is nothing without a subcommand
            assert name in containers
            continue
        (allowed if verdict == b"OK" else refused).add(" ".join(words).upper())
    return allowed, refused


async def arguments(client: redis_asyncio.Redis, words: list[str]) -> list[str]:
    """As many arguments as a command needs at least, for keys those that the rules allow."""
    info = await info_of(client, "|".join(words).lower())
    least = abs(info[1]) if info else len(words)
    return ["forebay:{default}:instances"] * max(0, least - len(words))


async def test_a_wrong_password_is_said_once_and_readiness_tells(guarded):
    """The replica routes blind and the log has one line for it, without the password."""
    wrong = guarded.url_of("forebay-proxy", "not-the-password")
    replica = await asyncio.to_thread(guarded.start_replica, "--redis", wrong)
    await asyncio.to_thread(until, lambda: fetch(f"{replica.admin_url}/health")[0] == 200, "it listens")
    await asyncio.to_thread(until, lambda: replica.metric("forebay_bus_read_failures_total") > 5, "it tries again")
    status, body = fetch(f"{replica.admin_url}/ready")
    assert (status, b"bus" in body) == (503, True)
    warnings = [line for line in replica.err.read_text().splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert "AuthenticationError" in warnings[0]
    assert "not-the-password" not in replica.text


# --- TLS


@pytest.fixture
def certificates(tmp_path) -> Path:
    """Give a folder with a CA and a certificate for loopback."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = ca.issue_cert("127.0.0.1", "localhost")
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in made.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    return tmp_path


async def test_tls_from_the_client_to_the_worker_and_to_the_bus(certificates, tmp_path, http):
    """Streams and plain answers pass encrypted; whoever speaks no TLS, or knows another CA, does not get through."""
    binary = redis_binary()
    if binary is None:
        pytest.skip("Redis is not installed here: there is no redis-server on the PATH (7.0 or newer)")
    pem = {name: str(certificates / f"{name}.pem") for name in ("ca", "cert", "key")}
    tls = ["--tls-cert", pem["cert"], "--tls-key", pem["key"]]

    def start(fleet: Fleet, bus: str) -> Replica:
        [engine] = fleet.start_engines("--speed", "20")
        fleet.start_worker("i1", engine, "--redis", bus, *tls)
        replica = fleet.start_replica("--redis", bus, *tls, "--worker-ca", pem["ca"])
        fleet.wait()
        return replica

    with Fleet(tmp_path / "fleet") as fleet, TlsServer(binary, pem) as server:
        replica = await asyncio.to_thread(start, fleet, server.tls_url)
        url = replica.url.replace("http://", "https://")
        assert fleet.workers["i1"].said(r"listening on (https://\S+)")
        context = ssl.create_default_context(cafile=pem["ca"])
        for stream in (False, True):
            async with http.post(f"{url}{CHAT}", json={**BODY, "stream": stream}, ssl=context) as answer:
                assert (answer.status, answer.headers["x-forebay-instance"]) == (200, "i1")
                assert await answer.read()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.post(f"{url}{CHAT}", json=BODY)  # a CA that this client does not know
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"{replica.url}/health")  # no TLS at all
        async with http.get(f"{url}/health", ssl=context) as answer:
            assert answer.status == 200
        assert "Traceback" not in replica.text
        stranger = await asyncio.to_thread(fleet.start_replica, "--redis", server.tls_url)
        await asyncio.to_thread(until, lambda: fleet.is_seen_by(stranger), "it sees the worker")
        async with http.post(f"{stranger.url}{CHAT}", json=BODY) as answer:  # it does not know the workers' CA
            assert answer.status == 502
            assert "ertificate" in (await answer.json())["error"]["message"]


class TlsServer(EmbeddedServer):
    """A Redis that speaks TLS on a port beside its plain one."""

    def __init__(self, binary: Path, pem: dict[str, str]) -> None:
        (self.tls_port,) = free_ports(1)
        self._pem = pem
        port = ("--tls-port", str(self.tls_port), "--tls-auth-clients", "no")
        files = ("--tls-cert-file", pem["cert"], "--tls-key-file", pem["key"], "--tls-ca-cert-file", pem["ca"])
        super().__init__(binary=binary, options=(*port, *files))

    @property
    def tls_url(self) -> str:
        """Where clients connect by TLS."""
        return f"rediss://127.0.0.1:{self.tls_port}/0?ssl_ca_certs={self._pem['ca']}"


# --- nothing of what clients say is written down


async def test_no_word_of_a_client_is_in_a_log_a_page_a_metric_or_on_the_bus(start_own_fleet, http, tmp_path):
    """Answered, refused, failed, broken off, unreadable, misframed: at log level debug nothing of it is found again."""
    debug = ["--log-level", "debug"]
    fleet = await asyncio.to_thread(
        lambda: start_own_fleet(engines=1, replicas=1, engine=["--speed", "20"], worker=debug, replica=debug)
    )
    [replica], [engine] = fleet.replicas, fleet.engines
    said = {**BODY, "messages": [{"role": "user", "content": MARKER}], "user": MARKER}

    async def ask(body: object = None, data: bytes | None = None, path: str = CHAT, **headers: str) -> int:
        try:
            url = f"{replica.url}{path}"
            named = {"content-type": "application/json", **headers}
            async with http.post(url, json=body, data=data, headers=None if body else named) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    for stream in (False, True):
        assert await ask({**said, "stream": stream}) == 200
        engine.fault("error_500", count=1)
        await ask({**said, "stream": stream})
        engine.fault("reset_mid_stream" if stream else "close", count=1)
        await ask({**said, "stream": stream})
        engine.fault("garbage_mid_stream" if stream else "garbage_bytes", count=1)
        await ask({**said, "stream": stream})
        await asyncio.to_thread(engine.heal)
    for fields in (
        {"model": MARKER},
        {"model": [MARKER]},
        {"max_tokens": -1},
        {"temperature": MARKER},
        {"tools": MARKER},
    ):
        assert await ask({**said, **fields}) > 0
    for data in (
        f'{{"model":"sim","x":"{MARKER}'.encode(),
        MARKER.encode(),
        b'{"model":"' + MARKER.encode() + b'\xff"}',
    ):
        assert await ask(data=data) == 400
    multipart = f'--x\r\nContent-Disposition: form-data; name="{MARKER}"\r\n\r\n{MARKER}\r\n'.encode()
    assert (
        await ask(
            data=multipart, path="/v1/audio/transcriptions", **{"content-type": "multipart/form-data; boundary=x"}
        )
        >= 400
    )
    await send_broken(replica.url, fleet.workers["i1"].url, replica.admin_url)
    await asyncio.to_thread(fleet.wait_until_idle)
    await nothing_is_written_down(fleet)


async def send_broken(*urls: str) -> None:
    """Send to listeners what is no HTTP, each with the marker where a parser stumbles."""
    for raw in (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}{MARKER} {MARKER}\r\n{MARKER}\r\n\r\n",
        f"{MARKER}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{MARKER} : x\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx: {MARKER * 1000}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{MARKER}\r\n",
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: {len(MARKER)}\r\n\r\n{MARKER}",
    ):
        for url in urls:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(raw.encode())
            async with asyncio.timeout(30):
                await reader.read(100)
            writer.transport.abort()


async def nothing_is_written_down(fleet: Fleet) -> None:
    """The marker is in no log, no page, no metric and no key."""
    [replica] = fleet.replicas
    for part in fleet.parts:
        if not part.name.startswith("engines"):
            assert MARKER not in part.text, part.name
    pages = [
        f"{replica.admin_url}{path}" for path in ("/metrics", "/debug/instance_loads", "/debug/selections?limit=500")
    ]
    pages += [f"{fleet.workers['i1'].admin_url}{path}" for path in ("/metrics", "/debug/predictions")]
    for page in pages:
        status, body = fetch(page)
        assert (status, MARKER.encode() in body) == (200, False), page
    assert MARKER not in await everything_on(fleet.bus.url)
