from itertools import pairwise

import pytest

from bus.record import PressureRecord
from bus.registration import Registration
from bus.view import Pressure
from proxy.dashboard.history import EVERY_S, MOMENTS, History

REGISTRATION = Registration(worker_url="http://127.0.0.1:1", engine_url="http://127.0.0.1:2", models=("m",))


def pressure(instance: str, **signals: float) -> Pressure:
    """An instance whose record has these signals; unknown without any."""
    record = PressureRecord(epoch=1, sequence=1, **signals) if signals else None
    return Pressure(instance, REGISTRATION, record, 0.0, None if record else "expired", in_transit_tokens=7)


def test_moments_come_oldest_first_with_their_age():
    """A page made later tells how long ago each moment was."""
    history = History()
    for second in range(3):
        history.note({"p": [pressure("a", inflight=second, kv_usage=0.5)]}, {"a": 10 + second}, now_s=100.0 + second)
    page = history.page(now_s=103.5)
    assert page["ages_s"] == [3.5, 2.5, 1.5]
    assert page["columns"][0] == "inflight"
    [instance] = page["instances"]
    assert (instance["pool"], instance["id"]) == ("p", "a")
    assert instance["rows"] == [(second, None, None, 0.5, 7, 10 + second) for second in range(3)]


def test_unknown_stays_unknown_and_absent_stays_absent():
    """An instance without a record has nulls, one that was not there has no row."""
    history = History()
    history.note({"p": [pressure("a")]}, {}, now_s=1.0)
    history.note({"p": [pressure("b", inflight=0)]}, {}, now_s=2.0)
    rows = {each["id"]: each["rows"] for each in history.page(now_s=2.0)["instances"]}
    assert rows["a"] == [(None, None, None, None, 7, 0), None]
    assert rows["b"] == [None, (0, None, None, None, 7, 0)]


def test_instances_of_one_name_in_two_pools_are_two():
    """The pool is part of who an instance is."""
    history = History()
    history.note({"p": [pressure("a", inflight=1)], "q": [pressure("a", inflight=2)]}, {}, now_s=1.0)
    assert [each["pool"] for each in history.page(now_s=1.0)["instances"]] == ["p", "q"]


@pytest.mark.parametrize("looks_per_s", [1, 2, 10])
def test_it_is_bounded_however_often_it_is_told(looks_per_s):
    """Of many looks a second one is kept, and the oldest leave: instances that are gone with them."""
    history = History()
    history.note({"p": [pressure("gone", inflight=1)]}, {}, now_s=0.0)
    for look in range(2 * MOMENTS * looks_per_s):
        history.note({"p": [pressure("a", inflight=1)]}, {}, now_s=1.0 + look / looks_per_s)
    page = history.page(now_s=1.0 + 2 * MOMENTS)
    assert len(page["ages_s"]) == MOMENTS
    assert [each["id"] for each in page["instances"]] == ["a"]
    ages = page["ages_s"]
    assert all(0.75 * EVERY_S < before - after < 1.25 * EVERY_S for before, after in pairwise(ages))
