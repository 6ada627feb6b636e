import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from redis import exceptions as faults

from bus.link import PAUSE_S, Link
from bus.url import Address, BusUrl, read_url
from tests.bus.worker import until


class Scripted:
    """A server that answers each command line by line as it is told, for what real ones seldom do."""

    def __init__(self, answer: Callable[[bytes], bytes | None], *, holds: bytes | None = None) -> None:
        self.asked: list[bytes] = []
        self.connections = 0
        self.let_go = asyncio.Event()
        """Set: what begins with `holds` is answered."""
        self._answer = answer
        self._holds = holds
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            self.asked.append(b" ".join(words))
            if self._holds and self.asked[-1].startswith(self._holds):
                await self.let_go.wait()
            answer = self._answer(self.asked[-1])
            if answer is None:
                writer.close()
                return
            writer.write(answer)


@pytest.fixture
async def link_to() -> AsyncIterator[Callable[..., Link]]:
    """Make links that are closed with the test."""
    links: list[Link] = []

    def make(*servers: Address, timeout_s: float = 2.0, **more: object) -> Link:
        links.append(Link(BusUrl(servers=servers, **more), timeout_s=timeout_s))
        return links[-1]

    yield make
    for link in links:
        await link.aclose()


async def test_commands_at_once_share_one_connection_and_get_their_own_replies(real_bus):
    """A hundred commands before the connection is open, and a hundred after."""
    link = real_bus.connect()
    before = int((await real_bus.client.info("stats"))["total_connections_received"])
    for _ in range(2):
        echoes = await asyncio.gather(*(link.execute_command("ECHO", str(number)) for number in range(100)))
        assert echoes == [str(number).encode() for number in range(100)]

    after = int((await real_bus.client.info("stats"))["total_connections_received"])
    assert after - before == 1


async def test_an_error_is_the_one_of_its_command(real_bus):
    """Others that were asked at the same time are answered."""
    link = real_bus.connect()
    replies = await asyncio.gather(
        link.execute_command("ECHO", "a"),
        link.execute_command("EVALSHA", "f" * 40, 0),
        link.execute_command("NO-SUCH-COMMAND"),
        link.execute_command("ECHO", "b"),
        return_exceptions=True,
    )
    assert [type(reply) for reply in replies] == [bytes, faults.NoScriptError, faults.ResponseError, bytes]


async def test_a_late_reply_is_not_taken_for_the_next(real_bus):
    """A command that ran out of time, and one whose caller left, leave the connection in step."""
    link = real_bus.connect(0.1)
    await link.execute_command("PING")
    real_bus.fall_silent()
    with pytest.raises(faults.TimeoutError):
        await link.execute_command("ECHO", "late")
    left = asyncio.create_task(link.execute_command("ECHO", "left"))
    await asyncio.sleep(0)
    left.cancel()
    real_bus.speak_again()

    assert await _patiently(link, "ECHO", "next") == b"next"


async def test_a_frozen_server_is_dialled_anew_and_answers_when_it_thaws(real_bus):
    """Nobody waits for replies on a connection that has been silent for long."""
    link = real_bus.connect(0.05)
    await link.execute_command("PING")
    first = link._wire
    real_bus.fall_silent()

    async def is_given_up() -> bool:
        with pytest.raises(faults.RedisError):
            await link.execute_command("PING")
        return not first.is_open

    await until(is_given_up)
    real_bus.speak_again()
    assert await _patiently(link, "PING") == b"PONG"
    assert link._wire is not first


async def test_a_connection_that_the_server_closes_is_opened_anew(real_bus):
    """The next command finds a fresh one."""
    link = real_bus.connect()
    await link.execute_command("PING")
    await real_bus.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert await _patiently(link, "PING") == b"PONG"


async def test_after_a_fault_commands_fail_at_once_for_a_moment(link_to):
    """A dead server costs one attempt a pause, not one a command."""
    began_s = time.monotonic()
    async with Scripted(lambda _: None) as server:  # it closes at the first word
        link = link_to(server.address, timeout_s=5)
        for _ in range(1000):
            with pytest.raises(faults.ConnectionError):
                await link.execute_command("PING")
        assert server.connections <= 1 + (time.monotonic() - began_s) / PAUSE_S


async def test_a_command_whose_time_is_over_before_the_link_is_open_is_never_sent(link_to):
    """It must not be done late: whoever asked has decided without it; whoever still waits is served."""
    async with Scripted(lambda _: b"+OK\r\n", holds=b"AUTH") as server:
        link = link_to(server.address, password="pw", timeout_s=0.1)  # noqa: S106 - of a server made for this test
        with pytest.raises(faults.TimeoutError):
            await link.execute_command("RESERVE")
        server.let_go.set()
        assert await _patiently(link, "LATER") == b"OK"
        assert b"RESERVE" not in server.asked
        assert server.asked[0] == b"AUTH pw"


@pytest.mark.parametrize("reply", [b"*1\r\n$5\r\nslave\r\n", b":7\r\n", b"*0\r\n"])
async def test_a_reply_of_another_shape_is_a_fault_and_leaves_the_link_as_it_was(link_to, reply):
    """What nobody foresaw must not keep commands waiting in a link that never opens."""
    async with Scripted(lambda asked: reply if asked.startswith((b"ROLE", b"SENTINEL")) else b"+OK\r\n") as server:
        link = link_to(server.address, master="m")
        for _ in range(3):
            with pytest.raises(faults.ConnectionError):
                await link.execute_command("GET", "k")
        assert link._unsent == []


async def test_a_full_server_is_not_dialled_again_and_again(link_to):
    """It says so and closes; a thousand commands must not keep it full."""
    full = b"-ERR max number of clients reached\r\n"
    began_s = time.monotonic()
    async with Scripted(lambda _: full) as server:
        link = link_to(server.address)
        for _ in range(1000):
            with pytest.raises(faults.RedisError):
                await link.execute_command("GET", "k")
        assert server.connections <= 1 + (time.monotonic() - began_s) / PAUSE_S


async def test_a_master_that_was_demoted_is_dialled_anew(link_to):
    """Behind a name another may stand by now: the link does not stay where nothing can be written."""
    is_demoted = True
    answer = lambda asked: b"-READONLY no\r\n" if is_demoted and asked.startswith(b"SET") else b"+OK\r\n"  # noqa: E731
    async with Scripted(answer) as server:
        link = link_to(server.address)
        with pytest.raises(faults.ReadOnlyError):
            await link.execute_command("SET", "k", "v")
        is_demoted = False
        assert await _patiently(link, "SET", "k", "v") == b"OK"
        assert server.connections == 2


async def test_a_link_that_was_closed_while_it_opened_stays_closed(link_to):
    """Its opening is cancelled, and no later command begins another."""
    async with Scripted(lambda _: b"+OK\r\n", holds=b"AUTH") as server:
        link = link_to(server.address, password="pw")  # noqa: S106 - of a server made for this test
        asked = asyncio.create_task(link.execute_command("GET", "k"))
        await until(lambda: server.connections == 1)
        await link.aclose()
        with pytest.raises(faults.ConnectionError):
            await asked
        with pytest.raises(faults.ConnectionError):
            await link.execute_command("GET", "k")
        assert link._opening is None


async def test_moves_do_not_make_a_command_last_longer_than_its_limit(link_to, monkeypatch):
    """One limit for a command, however often it is sent on."""
    ends_s: list[float] = []
    ask = Link._ask

    async def noted(link: Link, packed: bytes, until_s: float):
        ends_s.append(until_s)
        return await ask(link, packed, until_s)

    monkeypatch.setattr(Link, "_ask", noted)
    async with Scripted(lambda _: b"+OK\r\n", holds=b"GET") as owner:
        moved = b"-MOVED 1 127.0.0.1:%d\r\n" % owner.address.port
        async with Scripted(lambda asked: moved if asked == b"GET k" else b"+OK\r\n") as other:
            with pytest.raises(faults.TimeoutError):
                await link_to(other.address, timeout_s=0.2).execute_command("GET", "k")
    first_s, again_s = ends_s
    assert first_s == again_s


async def test_a_node_that_has_not_the_keys_names_the_one_that_has(link_to):
    """MOVED is followed, and what comes after goes there at once."""
    async with (
        Scripted(lambda _: b"+done\r\n") as owner,
        Scripted(lambda _: b"-MOVED 866 127.0.0.1:%d\r\n" % owner.address.port) as other,
    ):
        link = link_to(other.address)
        assert await asyncio.gather(*(link.execute_command("GET", "k") for _ in range(3))) == [b"done"] * 3
        assert await link.execute_command("GET", "k") == b"done"
        assert [server.asked.count(b"GET k") for server in (other, owner)] == [3, 4]


async def test_nodes_that_send_on_to_each_other_end_in_a_fault(link_to):
    """A cluster in disorder costs some round trips, not an endless loop."""
    ports: list[int] = []
    async with (
        Scripted(lambda _: b"-MOVED 1 127.0.0.1:%d\r\n" % ports[0]) as one,
        Scripted(lambda _: b"-MOVED 1 127.0.0.1:%d\r\n" % one.address.port) as other,
    ):
        ports.append(other.address.port)
        with pytest.raises(faults.ConnectionError, match="do not agree"):
            await link_to(one.address).execute_command("GET", "k")


async def test_a_dead_seed_is_passed_over(link_to):
    """The next server of the URL is asked."""
    async with Scripted(lambda _: b"+done\r\n") as server:
        assert await link_to(Address("127.0.0.1", 1), server.address).execute_command("GET", "k") == b"done"


async def test_a_frozen_seed_is_passed_over(link_to):
    """It connects, and says nothing: the next one is asked."""
    async with Scripted(lambda asked: b"") as frozen, Scripted(lambda asked: b"+OK\r\n") as good:
        link = link_to(frozen.address, good.address)
        assert await _patiently(link, "PING") == b"OK"


async def test_a_node_that_freezes_is_asked_no_more(link_to):
    """Once another node has its keys, the seeds name that one."""
    is_frozen = False
    async with (
        Scripted(lambda asked: b"" if is_frozen else b"+old\r\n") as old,
        Scripted(lambda asked: b"+new\r\n") as new,
        Scripted(lambda asked: seed_says(asked)) as seed,
    ):

        def seed_says(asked: bytes) -> bytes:
            return b"+OK\r\n" if asked == b"PING" else b"-MOVED 1 %s\r\n" % str((old, new)[is_frozen].address).encode()

        link = link_to(seed.address, timeout_s=0.1)
        assert await link.execute_command("GET", "key") == b"old"
        is_frozen = True
        assert await _patiently(link, "GET", "key") == b"new"


async def test_what_is_no_redis_is_a_fault(link_to):
    """Bytes of another protocol end the connection."""
    async with Scripted(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        with pytest.raises(faults.ConnectionError):
            await link_to(server.address).execute_command("PING")


async def test_a_wrong_password_is_told_apart_from_a_dead_server(real_bus):
    """Whoever reads the log knows what to mend."""
    link = Link(read_url(real_bus.url.replace("redis://", "redis://nobody:wrong@")), timeout_s=2)
    with pytest.raises(faults.AuthenticationError):
        await link.execute_command("PING")
    await link.aclose()


async def test_closing_ends_what_waits(real_bus):
    """Nobody waits for a link that is closed, nor opens it again."""
    link = real_bus.connect()
    await link.execute_command("PING")
    real_bus.fall_silent()
    asked = asyncio.create_task(link.execute_command("PING"))
    await asyncio.sleep(0)
    await link.aclose()

    with pytest.raises(faults.ConnectionError):
        await asked
    with pytest.raises(faults.ConnectionError):
        await link.execute_command("PING")


async def _patiently(link: Link, *args: str) -> object:
    """Reply to a command that may fail while the link recovers."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return await link.execute_command(*args)
        except faults.RedisError:
            assert time.monotonic() < deadline, "the link does not recover"
            await asyncio.sleep(0.01)
