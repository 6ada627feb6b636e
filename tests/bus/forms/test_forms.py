import asyncio
import uuid

import pytest
from redis import exceptions as faults

from bus.in_transit import InTransit, Offer
from bus.key_limits import KeyLimits, Limits
from bus.keys import instances_key, pressure_key
from bus.reader import Reader
from bus.reservations import Reservations
from tests.bus.forms.cluster import MASTERS
from tests.bus.forms.node import until
from tests.bus.worker import Worker

SCRIPTS = {"publish", "register", "read_pool", "reserve", "give_back", "take_key", "settle_key"}


@pytest.fixture
def pool() -> str:
    """Give a pool that no other test has used."""
    return f"pool-{uuid.uuid4().hex[:8]}"


async def test_what_is_published_is_read_reserved_settled_and_given_back(form, link_to, pool):
    """One worker and one replica of a pool live through a request that arrives and one that does not."""
    worker = Worker(link_to(form.url), pool=pool)
    worker.signals = {"inflight": 3, "queued_tokens": 700}
    replica = link_to(form.url)
    reader, reservations = Reader(replica, pool, budget_s=5), Reservations(replica, pool)
    await worker.publish()
    view = await reader.view()
    reading = view.readings["a"]
    assert (reading.record.inflight, reading.record.queued_tokens) == (3, 700)
    assert reading.entry.registration == worker.registration
    assert reading.entry.epoch == reading.record.epoch == worker.publisher.epoch > 0

    offer = Offer("a", 1.0, 0.001, 0.25, 0, 0)
    arrives = await reservations.choose([offer], reservation="arrives", tokens=100, view_us=view.server_us)
    assert arrives is not None
    assert arrives.sums == [InTransit(0, 0)]
    fails = await reservations.choose([offer], reservation="fails", tokens=40, view_us=view.server_us)
    assert fails is not None
    assert fails.sums == [InTransit(100, 1)]
    assert fails.scores == [pytest.approx(1.35)]
    assert in_transit(await reader.view()) == (140, 2)

    worker.publisher.arrived("arrives")
    await worker.publish()
    assert in_transit(await reader.view()) == (40, 1)
    reservations.give_back("a", "fails")
    await reservations.close()
    assert in_transit(await reader.view()) == (0, 0)
    assert worker.publisher.settled == reservations.given_back == 1
    assert worker.publisher.failures == reservations.failures == reader.read_failures == 0


async def test_keys_have_their_limits(form, link_to, pool):
    """Two requests at once are one too many, until the first has ended."""
    keys, limits = KeyLimits(link_to(form.url)), Limits(inflight=1, tokens_per_minute=1000)
    assert (await keys.take(pool, limits, lease="1", tokens=10)).is_let_in
    assert (await keys.take(pool, limits, lease="2", tokens=10)).limit == "inflight"
    await keys.renew(pool, lease="1")
    await keys.settle(pool, limits, lease="1", correction=2000)
    assert (await keys.take(pool, limits, lease="3", tokens=10)).limit == "tokens_per_minute"


async def test_every_script_touches_one_slot(cluster, link_to, pool):
    """All KEYS of each call have one slot, as the servers compute it, and a cluster has let every script run."""
    link, called = link_to(cluster.url), []
    execute = link.execute_command

    async def recorded(*args):
        called.append(args)
        return await execute(*args)

    link.execute_command = recorded
    worker, reader, reservations = Worker(link, pool=pool), Reader(link, pool, budget_s=5), Reservations(link, pool)
    other, keys, limits = Worker(link, "b", pool=pool), KeyLimits(link), Limits(inflight=1, tokens_per_minute=10)
    worker.publisher.arrived("1")
    await worker.publish()
    await other.publish()
    view = await reader.view()
    offers = [Offer(name, 1.0, 0.0, 0.0, 0, 0) for name in ("a", "b")]
    assert await reservations.choose(offers, reservation="1", tokens=1, view_us=view.server_us)
    reservations.give_back("a", "1")
    await reservations.close()
    await keys.take(pool, limits, lease="1", tokens=1)
    await keys.settle(pool, limits, lease="1", correction=1)

    names = {
        script._sha: script.name
        for owner in (worker.publisher, reader, reservations, keys)
        for script in vars(owner).values()
        if hasattr(script, "_sha")
    }
    calls = [(names[args[1]], args[3 : 3 + args[2]]) for args in called if args[0] == "EVALSHA"]
    assert {name for name, _ in calls} == SCRIPTS
    for name, keys_of_call in calls:
        assert len({cluster.slot(key) for key in keys_of_call}) == 1, (name, keys_of_call)
    assert max(len(keys_of_call) for _, keys_of_call in calls) == 5  # the whole pool in one reading


async def test_two_pools_live_on_two_shards(cluster, link_to, pool):
    """Each is found through a seed that has it or has it not; what one stores is not on the other's master."""
    pools = {cluster.holder(instances_key(name)).port: name for name in (f"{pool}-{n}" for n in range(40))}
    assert len(pools) == MASTERS
    for name in pools.values():
        worker = Worker(link_to(cluster.url), pool=name)
        await worker.publish()
        assert worker.publisher.failures == 0
        assert list((await Reader(link_to(cluster.url), name, budget_s=5).view()).readings) == ["a"]
    masters = {node.port: node for node in cluster.nodes if node.port in pools}
    for port, name in pools.items():
        assert masters[port].ask("KEYS", f"*{name}*")
        assert all(not node.ask("KEYS", f"*{name}*") for other, node in masters.items() if other != port)


async def test_any_node_of_a_cluster_is_a_good_seed(cluster, link_to, pool):
    """Masters of other slots and replicas name the node that has the keys."""
    for number, node in enumerate(cluster.nodes):
        link = link_to(f"redis://127.0.0.1:{node.port}")
        worker = Worker(link, f"i{number}", pool=pool)
        await worker.publish()
        assert worker.publisher.failures == 0, node.port
        assert link._wire.address.port == cluster.holder(pressure_key(pool, "a")).port


async def test_a_first_burst_finds_the_node_that_has_the_keys(cluster, link_to, pool):
    """A thousand commands at once on a new link, sent to a wrong node, are all answered, the last too."""
    key = instances_key(pool)
    wrong = next(node for node in cluster.nodes[:MASTERS] if node.port != cluster.holder(key).port)
    link = link_to(f"redis://127.0.0.1:{wrong.port}")
    padding = [f"{key}:{'x' * 500}{number}" for number in range(1000)]  # longer than one reading of the socket
    assert await asyncio.gather(*(link.execute_command("EXISTS", name) for name in padding)) == [0] * 1000


async def test_a_pool_is_followed_to_the_node_that_it_is_moved_to(cluster, link_to, pool):
    """Resharding moves the slot of a living pool: its workers and replicas follow, and its epochs go with it."""
    worker, reader = Worker(link_to(cluster.url), pool=pool), Reader(link_to(cluster.url), pool, budget_s=5)
    await worker.publish()
    await reader.view()
    before, epoch = cluster.holder(instances_key(pool)), worker.publisher.epoch

    end = cluster.start_moving(instances_key(pool))
    await worker.publish()  # whatever becomes of it
    end()

    failures, published = worker.publisher.failures, worker.publisher.published
    await worker.publish()
    until(lambda: cluster.holder(instances_key(pool)) is not before, "all nodes know the new one")
    assert (worker.publisher.failures, worker.publisher.published) == (failures, published + 1)
    assert (await reader.view()).readings["a"].record.sequence == worker.publisher.sequence
    assert worker.publisher.epoch == epoch


async def test_dead_sentinels_are_passed_over(sentinels, link_to, pool):
    """The URL names two that do not exist before one that does."""
    url = sentinels.url.replace("//", "//127.0.0.1:1,127.0.0.1:2,")
    worker = Worker(link_to(url), pool=pool)
    await worker.publish()
    assert worker.publisher.failures == 0


async def test_a_master_that_sentinels_do_not_know_is_a_fault_that_names_it(sentinels, link_to):
    """A mistyped name of a master is told."""
    link = link_to(sentinels.url.rsplit("/", 1)[0] + "/nobody")
    with pytest.raises(faults.ConnectionError, match="knows no master 'nobody'"):
        await link.execute_command("PING")


async def test_a_certificate_that_nobody_vouches_for_is_a_fault(start_form, link_to):
    """Without the authority's certificate the server is not believed."""
    url = start_form("tls").url.split("?")[0]
    with pytest.raises(faults.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await link_to(url).execute_command("PING")


async def test_a_server_that_wants_a_certificate_says_so_or_hangs_up(start_form, link_to, certificates):
    """A caller that shows none is refused; nothing hangs."""
    url = start_form("tls").url.split("?")[0] + f"?ssl_ca_certs={certificates}/ca.pem"
    with pytest.raises(faults.ConnectionError):
        await link_to(url).execute_command("PING")


async def test_plain_words_to_a_tls_server_are_a_fault(start_form, link_to):
    """redis:// where rediss:// is needed fails, and does not hang."""
    url = start_form("tls").url.split("?")[0].replace("rediss:", "redis:")
    with pytest.raises(faults.ConnectionError):
        await link_to(url).execute_command("PING")


def in_transit(view) -> tuple[int, int]:
    """What a view shows in transit to the instance."""
    reading = view.readings["a"]
    return reading.in_transit_tokens, reading.in_transit_requests
