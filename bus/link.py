"""One connection to the bus, shared by all in this process who ask, instead of one for each command under way.

Commands go out in the order in which they are given, and their replies come back in that order. A connection
a command, as clients with a pool have it, means a hundred connections for a hundred choices in one instant, each opened
within the budget of a choice. Here the connection is opened once, and a command that runs out of time leaves it as it
is: its reply is dropped when it comes.

Every command ends within the link's time limit, in a reply or in an exception of `redis.exceptions`. Nothing is ever
sent twice, but for a command that a cluster's node has refused since another has its keys.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import hiredis
from redis import exceptions as faults

from bus.url import Address, BusUrl

#: Longest time to open a connection, s; whoever waits for it has a limit of its own.
OPEN_S: Final = 1.0

#: A command without a reply for so long means that the connection is dead, s: a frozen server, a network that is gone.
DEAD_S: Final = 0.5

#: After a connection could not be opened, commands fail at once for so long, s.
PAUSE_S: Final = 0.1

#: Nodes of a cluster that a command may be sent on to.
MOST_MOVES: Final = 3


_T = TypeVar("_T")

Argument = str | int | float | bytes

_pack: Final[Callable[[tuple[Argument, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment] # knows tuples of one


class Moved(faults.ResponseError):
    """A cluster's node says that another has the keys; nothing was done."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        host, _, port = text.rsplit(" ", 1)[-1].rpartition(":")
        self.address = Address(host, int(port))


_KINDS: Final[dict[str, type[faults.RedisError]]] = {
    "NOSCRIPT": faults.NoScriptError,
    "MOVED": Moved,
    "READONLY": faults.ReadOnlyError,
    "WRONGPASS": faults.AuthenticationError,
    "NOAUTH": faults.AuthenticationError,
    "NOPERM": faults.NoPermissionError,
    "LOADING": faults.BusyLoadingError,
}


def _error(text: str) -> Exception:
    """Exception for an error that the server replied."""
    code = text.split(" ", 1)[0]
    try:
        return _KINDS.get(code, faults.ResponseError)(text)
    except ValueError:  # a MOVED that names no address
        return faults.ResponseError(text)


class _Asked(NamedTuple):
    """A command on its way: who waits for the reply, and since when."""

    reply: "asyncio.Future[Any]"
    since_s: float


class Wire(asyncio.Protocol):
    """One open connection: bytes out, replies in, matched by their order."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.has_ended = asyncio.Event()
        self._asked: deque[_Asked] = deque()
        self._loop = asyncio.get_running_loop()
        self._replies = hiredis.Reader(protocolError=faults.ConnectionError, replyError=_error)
        self._transport: asyncio.Transport | None = None
        self._is_left = False

    def __repr__(self) -> str:
        return f"<Wire {self.address} {'open' if self.is_open else 'closed'}, {len(self._asked)} asked>"

    @property
    def is_open(self) -> bool:
        """Whether a command can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, packed: bytes, reply: "asyncio.Future[Any]") -> None:
        """Send a command; `reply` is resolved when it is answered or the connection ends."""
        if self._transport is None or self._transport.is_closing():  # uvloop raises a bare RuntimeError on writing
            reply.set_exception(faults.ConnectionError(f"{self.address}: connection lost"))
            return
        self._asked.append(_Asked(reply, self._loop.time()))
        self._transport.write(packed)

    async def ask(self, *args: Argument) -> Any:  # noqa: ANN401 - whatever the server replies
        """Send a command and wait for its reply, without a limit of its own."""
        reply = self._loop.create_future()
        self.send(_pack(args), reply)
        return await reply

    def is_dead(self) -> bool:
        """Whether the oldest command has waited too long for this connection to be believed in."""
        return bool(self._asked) and self._loop.time() - self._asked[0].since_s > DEAD_S

    def abort(self) -> None:
        """End the connection; whoever waits for a reply is told."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(faults.ConnectionError(f"{self.address}: connection given up"))

    def leave(self) -> None:
        """End the connection as soon as what was asked is answered; nothing more is sent."""
        self._is_left = True
        if self._asked:
            self._loop.call_later(DEAD_S, self.abort)
        else:
            self.abort()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Hand every reply that is whole to whoever waits for it."""
        replies = self._replies
        replies.feed(data)
        try:
            while (value := replies.gets()) is not False:
                self._take(value)
            if self._is_left and not self._asked:
                self.abort()
        except (faults.ConnectionError, IndexError):  # this is no Redis, or it answers what nobody asked
            self.abort()

    def connection_lost(self, fault: Exception | None) -> None:
        """The other side has closed the connection, or it broke."""
        self.has_ended.set()
        self._fail(faults.ConnectionError(f"{self.address}: connection lost{f': {fault}' if fault else ''}"))

    def _take(self, value: Any) -> None:  # noqa: ANN401
        reply = self._asked.popleft().reply
        if reply.done():
            return  # whoever asked has stopped waiting
        if isinstance(value, Exception):
            reply.set_exception(value)
        else:
            reply.set_result(value)

    def _fail(self, fault: Exception) -> None:
        asked, self._asked = self._asked, deque()
        for each in asked:
            if not each.reply.done():
                each.reply.set_exception(fault)


class Link:
    """The connection to the bus that `url` describes; opened when it is first needed, and again when it was lost.

    `timeout_s` bounds every command, the opening of the connection included.
    """

    def __init__(self, url: BusUrl, *, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._wire: Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._node: Address | None = None
        """The node of a cluster that has our keys, as another one said."""
        self._first = 0
        """Place in the URL of the server that answered last."""
        self._pause_until_s = float("-inf")
        self._fault: Exception | None = None

    def __repr__(self) -> str:
        return f"<Link {self._wire!r}>"

    async def execute_command(self, *args: Argument) -> Any:  # noqa: ANN401 - as the server replies
        """Send one command and return its reply, of which texts are bytes.

        Raises redis.exceptions: TimeoutError, faults.ConnectionError, AuthenticationError, or what the server replied.
        """
        packed, until_s = _pack(args), asyncio.get_running_loop().time() + self._timeout_s
        for _ in range(MOST_MOVES):
            try:
                return await self._ask(packed, until_s)
            except Moved as moved:
                self._follow(moved.address)
            except faults.ReadOnlyError as fault:  # no master any longer: who is one stands behind the name, or is told
                if self._wire is not None:
                    self._wire.abort()
                self._pause(faults.ConnectionError(str(fault)))
                raise
        raise faults.ConnectionError("the cluster's nodes do not agree who has the keys")

    async def script_load(self, source: str) -> Any:  # noqa: ANN401
        """Let the server know a script."""
        return await self.execute_command("SCRIPT", "LOAD", source)

    async def aclose(self) -> None:
        """Close the connection."""
        self._pause_until_s, self._fault = float("inf"), faults.ConnectionError("the link is closed")
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._wire is not None:
            self._wire.abort()
            await self._wire.has_ended.wait()

    async def _ask(self, packed: bytes, until_s: float) -> Any:  # noqa: ANN401
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._submit(packed, reply)
        timer = loop.call_at(until_s, self._expire, reply)
        try:
            return await reply
        finally:
            timer.cancel()

    def _submit(self, packed: bytes, reply: "asyncio.Future[Any]") -> None:
        """Send a command now, or as soon as the connection is open."""
        wire = self._wire
        if wire is not None and wire.is_open:
            wire.send(packed, reply)
            return
        loop = asyncio.get_running_loop()
        if self._opening is None:
            if loop.time() < self._pause_until_s and self._fault is not None:
                raise type(self._fault)(str(self._fault))
            self._opening = loop.create_task(self._open(), name="open the link to the bus")
        self._unsent.append((packed, reply))

    def _expire(self, reply: "asyncio.Future[Any]") -> None:
        """The time of a command is over."""
        if not reply.done():
            reply.set_exception(faults.TimeoutError(f"no reply within {self._timeout_s:g} s"))
        if self._wire is not None and self._wire.is_dead():
            self._wire.abort()
            self._node = None  # another may have its keys by now

    def _follow(self, address: Address) -> None:
        """Go to the node that has our keys; a pool's keys are all in one place."""
        said_by = self._wire.address if self._wire else self._node or address
        self._node = Address(address.host or said_by.host, address.port)  # an empty host: the one of who said so
        if self._wire is not None and self._wire.address != self._node:
            self._wire.leave()  # others have asked it in the same burst: each is told to move by itself
            self._wire = None

    # -- opening

    async def _open(self) -> None:
        """Open the connection and send what waits for it; on a fault tell whoever waits."""
        try:
            async with asyncio.timeout(max(OPEN_S, self._timeout_s)):
                self._wire = await self._reach()
        except asyncio.CancelledError:
            self._fail(faults.ConnectionError("the link is closed"))
            raise
        except faults.RedisError as refused:
            self._fail(refused)
        except OSError as broken:  # TimeoutError is one
            self._fail(faults.ConnectionError(f"{self._url.servers[0]}: {broken or 'connection timed out'}"))
        except Exception as strange:  # a name that is none, a reply of another shape: whoever waits must be told
            self._fail(faults.ConnectionError(f"{self._url.servers[0]}: {type(strange).__name__}"))
        else:
            self._opening = None
            unsent, self._unsent = self._unsent, []
            for packed, reply in unsent:
                if not reply.done():  # else its time is over: it must not be done late
                    self._wire.send(packed, reply)

    def _fail(self, fault: Exception) -> None:
        self._opening, self._node = None, None
        self._pause(fault)
        unsent, self._unsent = self._unsent, []
        for _, reply in unsent:
            if not reply.done():
                reply.set_exception(fault)

    def _pause(self, fault: Exception) -> None:
        """Open no connection for a moment; one that is closed stays so."""
        pause_until_s = asyncio.get_running_loop().time() + PAUSE_S
        if pause_until_s > self._pause_until_s:
            self._fault, self._pause_until_s = fault, pause_until_s

    async def _reach(self) -> Wire:
        """A connection to the server that takes our commands, logged in."""
        if self._url.master:
            return await self._login(await self._dial(await self._ask_sentinels()), is_master=True)
        if self._node is not None:
            return await self._login(await self._dial(self._node))
        return await self._first_of(self._reach_server)

    async def _reach_server(self, server: Address) -> Wire:
        return await self._login(await self._dial(server))

    async def _first_of(self, reach: Callable[[Address], Awaitable[_T]]) -> _T:
        """What `reach` returns for the first server of the URL that answers; the last that did is asked first."""
        servers, fault = self._url.servers, faults.ConnectionError("no server")
        for turn in range(len(servers)):
            place = (self._first + turn) % len(servers)
            try:
                async with asyncio.timeout(OPEN_S / len(servers)):  # a silent one must not use up the time of all
                    found = await reach(servers[place])
            except faults.AuthenticationError:
                raise
            except (OSError, faults.RedisError) as why:
                fault = faults.ConnectionError(f"{servers[place]}: {why or 'connection timed out'}")
            else:
                self._first = place
                return found
        raise fault

    async def _dial(self, address: Address) -> Wire:
        loop, tls = asyncio.get_running_loop(), self._url.tls
        if address.is_socket:
            return (await loop.create_unix_connection(lambda: Wire(address), address.host))[1]
        name = address.host if tls else None
        return (
            await loop.create_connection(
                lambda: Wire(address), address.host, address.port, ssl=tls, server_hostname=name
            )
        )[1]

    async def _login(self, wire: Wire, *, is_master: bool = False) -> Wire:
        """Say who we are, and wait for an answer: a frozen server connects too. A refusal ends the connection."""
        url = self._url
        try:
            await self._authenticate(wire)
            if url.database:
                await wire.ask("SELECT", url.database)
            role = await wire.ask("ROLE") if is_master else await self._answer(wire)
        except BaseException:
            wire.abort()
            raise
        if role[0] != b"master":
            wire.abort()
            raise faults.ConnectionError(f"{wire.address}: the sentinels name it, and it is no master yet")
        return wire

    async def _answer(self, wire: Wire) -> list[bytes]:
        """Wait for a sign of life, which a refusal is too."""
        try:
            await wire.ask("PING")
        except faults.ResponseError as refusal:
            if "max number of clients" in str(refusal):
                raise  # it closes the connection with these words: to dial at once would keep it full
        return [b"master"]

    async def _authenticate(self, wire: Wire) -> None:
        if self._url.password:
            await wire.ask("AUTH", *([self._url.username] if self._url.username else []), self._url.password)

    async def _ask_sentinels(self) -> Address:
        """Address of the master, from the first sentinel that knows it."""
        return await self._first_of(self._ask_sentinel)

    async def _ask_sentinel(self, sentinel: Address) -> Address:
        question = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.master
        wire = await self._dial(sentinel)
        try:
            found = await wire.ask(*question)
        except faults.AuthenticationError:  # most let everybody ask; this one wants the password that its servers want
            await self._authenticate(wire)
            found = await wire.ask(*question)
        finally:
            wire.abort()
        if not found:
            raise faults.ConnectionError(f"knows no master {self._url.master!r}")
        return Address(found[0].decode(), int(found[1]))
