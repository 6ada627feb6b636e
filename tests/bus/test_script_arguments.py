import pytest

from bus.errors import BusUnavailable
from bus.record import LARGEST
from tests.bus.worker import INSTANCES, PRESSURE, RESERVED

#: What Lua takes for a number, or would, and no count of milliseconds is.
NO_INTEGER = ("", "abc", "nan", "-nan", "inf", "-inf", "1.5", "-1", "1e300", "1e18", "9007199254740992", "1 2")


# --- arguments


@pytest.mark.parametrize("bad", ["0", *NO_INTEGER, str(LARGEST + 2)])
async def test_publish_refuses_a_bad_ttl_before_it_writes(scripts, bus, bad):
    """No record is left without an end."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(ttl_ms=bad)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("bad", NO_INTEGER)
@pytest.mark.parametrize("name", ["epoch", "sequence"])
async def test_publish_refuses_a_bad_fencing_number_before_it_writes(scripts, bus, name, bad):
    """What is stored can always be compared with what comes next."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(**{name: bad})

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("empty", [{"record": b""}, {"instance": ""}, {"epoch": 0}])
async def test_publish_refuses_what_is_missing(scripts, bus, empty):
    """An empty record, an empty instance and an epoch that nobody was given are not stored."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.publish(**empty)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("bad", NO_INTEGER)
@pytest.mark.parametrize("name", ["epoch", "lifetime_ms", "remembered_ms"])
async def test_register_refuses_a_bad_number_before_it_writes(scripts, bus, name, bad):
    """No hash of registrations is left without an end, and no entry that cannot be read."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.register(**{name: bad})

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("empty", [{"instance": ""}, {"payload": b""}, {"remembered_ms": 0}])
async def test_register_refuses_what_is_missing(scripts, bus, empty):
    """An entry has a name, a payload and an end."""
    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.register(**empty)

    assert await bus.client.dbsize() == 0


@pytest.mark.parametrize("name", ["publish", "register"])
@pytest.mark.parametrize("count", range(5))
async def test_missing_arguments_are_refused_before_anything_is_written(scripts, bus, name, count):
    """Too few arguments are an error, and no half of an entry."""
    keys = (PRESSURE, INSTANCES, RESERVED) if name == "publish" else (INSTANCES, PRESSURE)

    with pytest.raises(BusUnavailable, match="must be integers"):
        await scripts.call(name, keys, ("a", 7, 1, 1500, "p")[:count])

    assert await bus.client.dbsize() == 0


async def test_every_key_has_an_end(scripts, bus):
    """After a registration and a record nothing stands forever."""
    await scripts.register()
    await scripts.publish(epoch=2**52)

    keys = await bus.client.keys("*")

    assert set(keys) == {PRESSURE.encode(), INSTANCES.encode()}
    assert 0 < await bus.client.pttl(PRESSURE) <= 1500
    assert 600_000 < await bus.client.pttl(INSTANCES) <= 630_000


async def test_a_renewal_with_a_shorter_life_does_not_shorten_the_memory_of_others(scripts, bus):
    """The hash lives as long as its longest entry asked for."""
    await scripts.register(instance="long", lifetime_ms=60_000)

    await scripts.register(instance="short", lifetime_ms=0)

    assert await bus.client.pttl(INSTANCES) > 650_000
