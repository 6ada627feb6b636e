"""The scripts, called with arguments that are right but for those that a test names."""

from importlib import resources

from bus.keys import pressure_key, reserved_key
from bus.record import MAX_RECORD_BYTES
from bus.registration import MAX_ENTRY_BYTES
from bus.scripts import Script
from tests.bus.worker import INSTANCES, PRESSURE, RESERVED

#: Every script there is; the prelude stands before each of them.
LUA = resources.files("bus") / "lua"
NAMES = tuple(sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name != "prelude.lua"))


class Scripts:
    """The scripts on one server, called with one good set of arguments, some of them replaced."""

    def __init__(self, client) -> None:
        self._scripts = {name: Script(client, name) for name in NAMES}

    async def publish(self, *, record=b"r", epoch=7, sequence=1, ttl_ms=1500, instance="a"):
        """Publish for instance a."""
        keys = (PRESSURE, INSTANCES, RESERVED)
        return await self._scripts["publish"](keys, (record, epoch, sequence, ttl_ms, instance))

    async def register(self, *, instance="a", epoch=0, lifetime_ms=30_000, remembered_ms=600_000, payload=b"p"):
        """Register instance a."""
        keys = (INSTANCES, PRESSURE)
        return await self._scripts["register"](keys, (instance, epoch, lifetime_ms, remembered_ms, payload))

    async def read(self, *instances):
        """Read the registrations and the pressure of some instances."""
        keys = [INSTANCES]
        for instance in instances:
            keys += (pressure_key("default", instance), reserved_key("default", instance))
        return await self._scripts["read_pool"](keys, (1, MAX_RECORD_BYTES, MAX_ENTRY_BYTES))

    async def call(self, name, keys, args):
        """Call a script with whatever arguments."""
        return await self._scripts[name](keys, args)


async def _server_us(bus) -> int:
    seconds, microseconds = await bus.client.time()
    return int(seconds) * 1_000_000 + int(microseconds)
