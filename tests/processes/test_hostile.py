"""Five thousand hostile requests, and what is left of a replica, a worker and an engine after them: everything."""

import asyncio
import collections
import os
import re
from collections.abc import Iterator

import msgspec
import psutil
import pytest

from bus.key_limits import Limits
from proxy.keys import line_of
from tests.processes.attack import KEY, METERED_KEY, Attack, head, post, valid
from tests.processes.fleet import Fleet, Part, fetch, until
from tests.processes.hostile import attacks

pytestmark = pytest.mark.processes

SECRET = "proxies-know-this-one"  # noqa: S105 - of this test only
SEED = int(os.environ.get("FOREBAY_TEST_SEED", "20240611"))
COUNT = int(os.environ.get("FOREBAY_TEST_HOSTILE", "5000"))
AT_ONCE = 40
LIMIT_MB = 4
PATIENCE_S = 30.0
LARGER_THAN_A_READ = 60_000

#: Of the classes those that a worker answers before it asks for the secret: they are no HTTP.
NO_HTTP = frozenset({0, 400, 403, 408, 431, 501})


class Answer:
    """What came back on one connection: the first answer, and whether more followed."""

    def __init__(self, raw: bytes, *, is_cut: bool = False) -> None:
        self.raw = raw
        self.is_cut = is_cut
        """The server closed while we were still sending: the reset may have overtaken a part of its answer."""
        first, _, rest = raw.partition(b"\r\n\r\n")
        lines = first.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if raw.startswith(b"HTTP/") else 0
        self.headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines[1:])}
        self.body = rest[: int(self.headers.get("content-length", len(rest)))]

    @property
    def is_well_said(self) -> bool:
        """Whether an error of ours has OpenAI's shape; those of an engine pass as they are."""
        if self.status < 400 or self.is_cut or "x-forebay-instance" in self.headers:
            return True
        error = msgspec.json.decode(self.body)["error"]
        return set(error) == {"message", "type", "param", "code"} and bool(error["message"])


def is_whole(raw: bytes) -> bool:
    """Whether the first answer is all there; one in chunks never is, and is read to the end of the connection."""
    first, end, rest = raw.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", first)
    return bool(end and length) and len(rest) >= int(length[1])


async def send(port: int, attack: Attack) -> Answer:
    """Play one attack."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(attack.data)
            if attack.ends == "leaves":
                await asyncio.sleep(0)
                writer.transport.abort()
                return Answer(b"")
            if attack.ends == "half_closes":
                writer.write_eof()
            while not is_whole(raw) and (piece := await reader.read(65_536)):
                raw += piece
    except TimeoutError:
        return Answer(b"HTTP/1.1 -1 the connection hangs\r\n\r\n" + raw)
    except ConnectionError:
        return Answer(raw, is_cut=True)
    finally:
        writer.transport.abort()
    return Answer(raw)


@pytest.fixture(scope="module")
def fleet(start_fleet, tmp_path_factory) -> Iterator[Fleet]:
    """Give one engine, its worker with a secret, and a replica with a key and small limits, all at log level debug."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret").write_text(SECRET)
    lines = line_of("hostile", KEY, Limits(inflight=500)), line_of("metered", METERED_KEY, Limits(500, 10**9))
    (folder / "keys").write_text("\n".join(lines))
    shared = ["--secret-file", str(folder / "secret"), "--log-level", "debug"]
    limits = ["--body-limit-mb", str(LIMIT_MB), "--head-timeout-s", "3", "--body-timeout-s", "4"]
    return start_fleet(
        engines=1,
        replicas=1,
        engine=["--speed", "200"],
        worker=shared,
        replica=[*shared, *limits, "--api-keys", str(folder / "keys")],
    )


def fds(part: Part, bus_port: int) -> int:
    """Open file descriptors of a part, its pool of connections to the bus left out: as many as were needed at once."""
    process = psutil.Process(part.process.pid)
    found = 0
    for each in (process, *process.children(recursive=True)):
        to_bus = [one for one in each.net_connections() if one.raddr and one.raddr.port == bus_port]
        assert len(to_bus) <= 3 * AT_ONCE
        found += each.num_fds() - len(to_bus)
    return found


async def test_five_thousand_hostile_requests_break_nothing(fleet):
    """Each class gets the status and the shape that are right for it, none a 500, and afterwards all is as before."""
    replica, worker = fleet.replicas[0], fleet.workers["i1"]
    worker_port = int(worker.url.rpartition(":")[2])
    before = {part.name: fds(part, fleet.bus.port) for part in (replica, worker)}
    wrong: dict[str, str] = {}
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    turns = asyncio.Semaphore(AT_ONCE)

    async def play(number: int, attack: Attack) -> None:
        is_direct = number % 10 == 0 and attack.ends != "leaves"  # one of ten goes past the replica
        async with turns:
            answer = await send(worker_port if is_direct else replica.port, attack)
        seen[attack.kind, answer.status] += 1
        allowed = NO_HTTP if is_direct else attack.allowed
        if answer.is_cut and len(attack.data) > LARGER_THAN_A_READ:
            allowed = allowed | {0}
        is_mute = answer.status == 0 or attack.data.startswith(b"HEAD ")
        if answer.status not in allowed or not (is_mute or answer.is_well_said):
            what = "worker" if is_direct else "replica"
            where = f"{what}: {attack.kind} → {answer.status}"
            wrong.setdefault(where, f"{attack.data[:300]!r} … {attack.data[-60:]!r} → {answer.raw[:300]!r}")

    async with asyncio.TaskGroup() as tasks:
        for number, attack in enumerate(attacks(SEED, COUNT)):
            tasks.create_task(play(number, attack))
    assert not wrong, f"seed {SEED}: \n" + "\n".join(f"{where}: {what}" for where, what in wrong.items())
    assert len({kind for kind, _ in seen}) > 20

    await asyncio.to_thread(fleet.wait_until_idle)
    answer = await send(replica.port, Attack("normal", post(valid()), frozenset({200})))
    assert answer.status == 200
    for part in (replica, worker):
        await asyncio.to_thread(
            until,
            lambda p=part: fds(p, fleet.bus.port) <= before[p.name] + 6,
            f"fds of {part.name} come down to {before}",
            limit_s=90,
        )  # connections to workers are kept for half a minute
        assert part.process.poll() is None
        for sign in ("Traceback", "a fault of ours", "never retrieved"):
            assert sign not in part.text, part.text[-3000:]


async def test_slow_heads_and_slow_bodies_have_an_end(fleet):
    """408 in OpenAI's shape; a drop now and then does not help."""
    slow_body = head("POST", "/v1/chat/completions", "content-length: 50")

    async def drip(start: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.replicas[0].port)
        writer.write(start)
        raw = asyncio.create_task(reader.read())
        async with asyncio.timeout(PATIENCE_S):
            while not raw.done() and not reader._buffer:
                if not writer.is_closing():
                    writer.write(b"a")
                await asyncio.sleep(0.2)
            await asyncio.wait((raw,), timeout=0.5)
            writer.transport.abort()
            found = await asyncio.gather(raw, return_exceptions=True)
        return Answer(found[0] if isinstance(found[0], bytes) else bytes(reader._buffer))

    answers = await asyncio.gather(*(drip(start) for start in [b"GET /v1/models HTTP/1.1\r\nx: ", slow_body] * 10))
    assert {answer.status for answer in answers} == {408}
    assert all(b"request_timeout" in answer.body for answer in answers)
    await asyncio.to_thread(fleet.wait_until_idle)


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_body_of_200_mb_is_refused_without_being_held(fleet, framing):
    """413, at once where its length is told; the replica's memory does not grow by it."""
    replica = fleet.replicas[0]
    process = psutil.Process(replica.process.pid)
    watched = (process.children(recursive=True) or [process])[-1]
    before = watched.memory_info().rss
    size, piece = 200 * 1024 * 1024, b"a" * 65_536
    line = f"content-length: {size}" if framing == "content-length" else "transfer-encoding: chunked"
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(head("POST", "/v1/chat/completions", line))
    most = 0
    answer = asyncio.create_task(reader.read(65_536))
    try:
        for _ in range(size // len(piece)):
            writer.write(piece if framing == "content-length" else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            most = max(most, watched.memory_info().rss)
    except ConnectionError:
        pass  # it does not listen to the end
    async with asyncio.timeout(PATIENCE_S):
        found = Answer(await answer)
    writer.transport.abort()
    assert (found.status, found.is_well_said) == (413, True)
    assert most - before < 64 * 1024 * 1024
    assert fetch(f"{replica.admin_url}/health")[0] == 200
