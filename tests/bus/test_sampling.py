"""Pools larger than a sample: each reading asks for some instances of a model, drawn anew."""

import asyncio

from bus.reader import EVERYTHING, SAMPLE, Reader
from bus.view import PoolView
from tests.bus.worker import POOL, Worker, lately_served, registration

LARGE = SAMPLE + 16


async def large_pool(bus, *, rare: int = 3) -> None:
    """More instances of model `m` than a sample holds, and a few of model `rare`."""
    workers = [Worker(bus.client, f"m{number}", ttl_ms=60_000) for number in range(LARGE)]
    workers += [Worker(bus.client, f"rare{number}", ttl_ms=60_000) for number in range(rare)]
    for worker in workers:
        name = worker.publisher.instance
        worker.registration = registration(name, ttl_ms=60_000, models=("m" if name.startswith("m") else "rare",))
        await worker.publish()


def reader(bus) -> Reader:
    """A reader that is in no hurry."""
    return Reader(bus.connect(5.0), POOL, budget_s=5.0)


def read(view: PoolView) -> set[str]:
    """Instances that a view has asked for."""
    return {pressure.instance for pressure in view.live(view.read_at_s)}


async def test_a_sample_of_a_large_pool_is_read_and_differs_from_reading_to_reading(bus):
    """Given more instances than a sample, a choice sees SAMPLE of its model, and all of them in the long run."""
    await large_pool(bus)
    one = reader(bus)
    await one.view()
    seen: set[str] = set()
    for _ in range(20):
        sample = read(await one.view("m"))
        assert len(sample) == SAMPLE
        assert all(name.startswith("m") for name in sample)
        seen |= sample
    assert len(seen) == LARGE


async def test_the_few_instances_of_a_rare_model_are_all_read(bus):
    """A model that three instances of a large pool serve is not lost in the sample."""
    await large_pool(bus)
    one = reader(bus)
    await one.view()
    assert read(await one.view("rare")) == {"rare0", "rare1", "rare2"}
    assert read(await one.view("unheard of")) == set()


async def test_everything_is_read_where_it_is_asked_for(bus):
    """The debug pages show all instances; nobody else pays for them."""
    await large_pool(bus)
    one = reader(bus)
    assert len(read(await one.view(EVERYTHING))) == LARGE + 3


async def test_what_was_not_read_is_registered_all_the_same(bus):
    """Models and addresses are known of all; an instance that was not read is unknown, and no candidate by itself."""
    await large_pool(bus)
    one = reader(bus)
    await one.view()
    view = await one.view("rare")
    assert len(view.registered()) == LARGE + 3
    assert lately_served(view) == {"m", "rare"}
    unread = view.live(view.read_at_s, is_read=False)
    assert len(unread) == LARGE
    assert all(pressure.record is None and pressure.fault == "not read" for pressure in unread)


async def test_choices_for_different_models_at_once_each_see_their_own(bus):
    """A reading for one model is not mistaken for one of another."""
    await large_pool(bus)
    one = reader(bus)
    await one.view()

    async def names(model: str) -> set[str]:
        return {name.rstrip("0123456789") for name in read(await one.view(model))}

    found = await asyncio.gather(*(names(model) for model in ("m", "rare", "m", "rare", "rare", "m")))
    assert found == [{"m"}, {"rare"}, {"m"}, {"rare"}, {"rare"}, {"m"}]


async def test_a_reading_that_hangs_is_not_waited_for_again_by_those_who_need_another(bus, clock, monkeypatch):
    """They live on the last view at once: looking again and again would keep the loop from the very answer."""
    await large_pool(bus)
    one = Reader(bus.connect(), POOL, budget_s=0.01, clock=clock)
    await one.view()
    answers, script = asyncio.Event(), one._script

    async def hangs(*args):
        await answers.wait()
        return await script(*args)

    one._script = hangs
    before = await one.view("m")
    clock.move(0.02)
    monkeypatch.setattr(one, "_wait", None)  # nobody may ask for it
    assert await one.view("rare") is before
    answers.set()
    await one.close()
