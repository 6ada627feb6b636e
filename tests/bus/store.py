"""What is reserved, as the server stores it."""

from bus.in_transit import GRACE_MS, OLDEST_VIEW_US, InTransit, Offer
from bus.keys import instances_key, pressure_key, reserved_key
from bus.record import MAX_RECORD_BYTES
from bus.registration import MAX_ENTRY_BYTES
from bus.scripts import Script
from tests.bus.worker import POOL

LONGEST_GRACE_MS = 60_000

FREE = ("0", "0", "0", "0", "0")
"""An offer of an idle instance to which nothing makes a difference."""


class Store:
    """The scripts on one server, and what their keys then hold."""

    def __init__(self, client) -> None:
        self.client = client
        self._scripts = {name: Script(client, name) for name in ("reserve", "give_back", "publish", "read_pool")}
        self._sequence = 0

    async def now_us(self) -> int:
        """Server time."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    async def young_us(self) -> int:
        """Server time of a view that is young enough for as long as any test takes, however slow the machine."""
        return await self.now_us() + 60_000_000

    async def reserve(
        self,
        *instances: str,
        reservation: str = "x",
        amount: object = 100,
        grace_ms: object = GRACE_MS,
        view_us: object = None,
        oldest_us: object = OLDEST_VIEW_US,
        offers=None,
    ):
        """Call the script; by default with equal offers."""
        view_us = await self.young_us() if view_us is None else view_us
        offers = offers if offers is not None else [FREE] * len(instances)
        args = [reservation, amount, grace_ms, view_us, oldest_us, *(number for offer in offers for number in offer)]
        return await self._scripts["reserve"]([reserved_key(POOL, name) for name in instances], args)

    async def give_back(self, instance: str, reservation: str = "x") -> int:
        """End one reservation."""
        return await self._scripts["give_back"]([reserved_key(POOL, instance)], [reservation])

    async def publish(self, instance: str, *settled: str):
        """Publish some record that counts these."""
        self._sequence += 1
        keys = (pressure_key(POOL, instance), instances_key(POOL), reserved_key(POOL, instance))
        return await self._scripts["publish"](keys, ("record", 1, self._sequence, 1500, instance, *settled))

    async def sums(self, instance: str = "a") -> InTransit:
        """What a reader is told."""
        keys = (instances_key(POOL), pressure_key(POOL, instance), reserved_key(POOL, instance))
        *_, row = await self._scripts["read_pool"](keys, (0, MAX_RECORD_BYTES, MAX_ENTRY_BYTES))
        return InTransit(*row[3:])

    async def fields(self, instance: str = "a") -> dict[str, str]:
        """The hash as it is."""
        stored = await self.client.hgetall(reserved_key(POOL, instance))
        return {name.decode(): value.decode() for name, value in stored.items()}

    async def life_ms(self, instance: str = "a") -> int:
        """PTTL of the hash."""
        return await self.client.pttl(reserved_key(POOL, instance))

    async def put(self, instance: str = "a", *, life_ms: int = 2000, **leases: tuple[int, int]) -> None:
        """Store reservations (amount, expiry in ms from now) as the script would have."""
        now_us = await self.now_us()
        ends = {name: now_us + in_ms * 1000 for name, (_, in_ms) in leases.items()}
        fields = {f"r:{name}": f"{amount};{ends[name]}" for name, (amount, _) in leases.items()}
        sums = {"tokens": sum(amount for amount, _ in leases.values()), "requests": len(leases)}
        await self.client.hset(reserved_key(POOL, instance), mapping=fields | sums | {"oldest": min(ends.values())})
        await self.client.pexpire(reserved_key(POOL, instance), life_ms)


AB = [Offer("a", 0.0, 0.001, 0.0, 0, 0), Offer("b", 1.0, 0.001, 0.0, 0, 0)]
