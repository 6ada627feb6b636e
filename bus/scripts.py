"""The Lua scripts, loaded from bus/lua and called with typed arguments.

Owns the order of KEYS and ARGV and the translation of library errors. Knows nothing of records or policies.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, Protocol

import redis.exceptions

from bus.errors import BusUnavailable

#: Everything a Redis client can raise when the server, the network or the time limit fails.
BUS_FAULTS: Final = (redis.exceptions.RedisError, OSError, TimeoutError)


def lua_source(name: str) -> str:
    """Text of `bus/lua/NAME.lua`, with the prelude that the scripts share before it."""
    folder = resources.files("bus") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("prelude", name))


class Commands(Protocol):
    """What a script needs of a client: bus/link.py has it, and so have Redis clients, the fake one of the tests too."""

    async def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - as the server replies
        """Send one command and return its reply."""

    async def script_load(self, source: str) -> Any:  # noqa: ANN401
        """Let the server know a script."""


class Script:
    """One Lua script on one client: EVALSHA, and LOAD once if the server does not know it."""

    def __init__(self, client: Commands, name: str) -> None:
        self.name = name
        self._client = client
        self._source = lua_source(name)
        self._sha = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()  # the name Redis gives it

    async def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401 - Lua's reply
        """Run the script; BusUnavailable for whatever keeps it from answering."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task else 0
        try:
            return await self._run(keys, args)
        except BUS_FAULTS as fault:
            raise self._unavailable(fault) from fault
        finally:
            # asyncio.wait_for of Python 3.11, through which the library's own clients send, swallows a cancellation
            # that comes in the instant in which it is done: whoever cancelled would wait for ever
            if task and task.cancelling() > cancelled_before:
                raise asyncio.CancelledError

    def _unavailable(self, fault: Exception) -> BusUnavailable:
        text = f"{self.name}: {type(fault).__name__}: {fault}"
        return BusUnavailable(text, is_late=isinstance(fault, (TimeoutError, redis.exceptions.TimeoutError)))

    async def load(self) -> None:
        """Let the server know the script before it is needed. Raises BusUnavailable."""
        try:
            await self._client.script_load(self._source)
        except BUS_FAULTS as fault:
            raise self._unavailable(fault) from fault

    async def _run(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:  # noqa: ANN401
        execute = self._client.execute_command
        try:
            return await execute("EVALSHA", self._sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:  # a new server, or one that forgot
            await self._client.script_load(self._source)
            return await execute("EVALSHA", self._sha, len(keys), *keys, *args)
