import asyncio

from tests.hop.scripted import Asked, Peer
from tests.proxy.conftest import BODY


def plain(peer: Peer, _: Asked) -> None:
    """A worker that answers."""
    peer.answer(b"{}")


async def test_a_replica_says_how_it_fares(fleet):
    """Its answers by status, its choices by tier, how it reads and reserves: counts since its start."""
    await fleet.worker("a", plain)
    await fleet.start()
    for body in (BODY, BODY, b"no JSON"):
        await (await fleet.ask(body)).answer()
    page = await fleet.admin("/debug/replica")
    assert page["answers"] == {"200": 2, "400": 1}
    assert page["tiers"] == {"measured": 2}
    assert page["inflight"] == 0
    assert page["is_draining"] is False
    pool = page["pools"]["default"]
    assert pool["bus"]["state"] == "fresh"
    assert (pool["registered"], pool["read_failures"], pool["reservations"]["made"]) == (1, 0, 2)


async def test_where_the_bus_is_is_told_without_the_login(fleet):
    """A page for people names the servers, and no password."""
    await fleet.worker("a", plain)
    await fleet.start(redis="redis://user:hush-hush@127.0.0.1:7777,127.0.0.1:7778/0")
    page = await fleet.admin("/debug/replica")
    assert page["bus_servers"] == ["127.0.0.1:7777", "127.0.0.1:7778"]
    assert "hush" not in str(page)


async def test_it_remembers_without_being_looked_at(fleet):
    """A page that is opened later finds the moments before it."""
    await fleet.worker("a", plain, inflight=3)
    await fleet.start()
    async with asyncio.timeout(30):
        while len((page := await fleet.admin("/debug/history"))["ages_s"]) < 2:
            pass
    [instance] = page["instances"]
    assert instance["id"] == "a"
    assert all(row[page["columns"].index("inflight")] == 3 for row in instance["rows"])


async def test_an_instance_says_why_less_is_sent_there(fleet):
    """The page of instances has in words what is held against one, and whether it is full."""
    await fleet.worker("a", plain, told={"slots": 1, "queue_limit": 0}, inflight=1)
    await fleet.worker("b", plain)
    await fleet.start()
    fleet.replica.selection.ejections.failed("b", now=1e12, needs_health=True)  # its health is not due for long
    instances = {one["id"]: one for one in (await fleet.admin("/debug/instance_loads"))["instances"]}
    assert (instances["a"]["is_full"], instances["a"]["held_against"]) == (True, None)
    assert (instances["b"]["is_full"], instances["b"]["is_ejected"]) == (False, True)
    assert instances["b"]["held_against"] == "out until its worker answers"
