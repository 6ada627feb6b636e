"""What counts as growth: a leak does, a rush does not."""

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import Ledger
from tests.chaos.soak import SPARED, Growth, Sample, growth, misses

TIMES = {"began_s": 0.0, "calm_s": 55.0, "ended_s": 400.0}


def samples(fds, memory_mb=lambda _: 50.0):
    """Looks of 400 s, one each two."""
    return [Sample(float(at_s), memory_mb(at_s), fds(at_s)) for at_s in range(0, 400, 2)]


def found(looks):
    """Growth over the whole of them."""
    result = growth("worker", looks, **TIMES)
    assert result is not None
    return result


def test_descriptors_of_a_rush_are_no_growth():
    """Requests under way have theirs, however many there are in the last quarter."""
    assert found(samples(lambda at_s: 40 + (0 if at_s % 20 == 0 else 5 if at_s < 300 else 25))).is_flat


@pytest.mark.parametrize("leaked_fds", [8, 20])
def test_what_leaks_is_there_in_the_quietest_moment_too(leaked_fds):
    """Also where there is less to do at the end."""
    assert not found(samples(lambda at_s: 40 + leaked_fds * at_s // 225 + (0 if at_s % 20 == 0 else 15))).is_flat


def test_memory_that_grows_steadily_is_growth():
    """Six per cent from the second to the last quarter are too much, four are not."""
    assert not found(samples(lambda _: 40, lambda at_s: 50.0 + 3.0 * (at_s >= 300))).is_flat
    assert found(samples(lambda _: 40, lambda at_s: 50.0 + 2.0 * (at_s >= 300))).is_flat


def test_a_process_that_was_started_anew_is_not_compared():
    """Its first minute of work is no growth; who was there when the first eighth was over, is."""
    looks = samples(lambda _: 40)
    assert growth("worker", looks[40:], **TIMES) is None
    assert growth("worker", looks[28:], **TIMES) is not None


def test_a_process_that_is_gone_before_the_end_is_not_compared():
    """However much of the last quarter it lived."""
    assert growth("worker", samples(lambda _: 40)[:190], **TIMES) is None


def measured(*names: str, **more) -> list[Growth]:
    """Give processes that did not grow."""
    values = {"memory_mb": (50.0, 50.0), "fds": (40, 40), **more}
    return [Growth(name, **values) for name in names]


ALL = ("bus", "engines-0", "replica-7", "worker-i1-1", "worker-i2-2")


def test_a_soak_in_which_nobody_was_measured_has_failed():
    """Each of the bus, the engines, a replica and the two spared workers must be there."""
    assert misses(measured(*ALL)) == []
    assert len(misses([])) == 5
    for name in ALL:
        (line,) = misses(measured(*(other for other in ALL if other != name)))
        assert line.endswith("was not measured")
        assert name.startswith(line.split()[0])


def test_what_has_grown_is_a_miss():
    """Named, beside those that are flat."""
    assert misses([*measured(*ALL), *measured("replica-9", fds=(40, 60))]) == ["replica-9 has grown"]


def test_the_spared_are_never_started_anew():
    """Whoever's turn it is: what restarts processes hits the others, everything else hits all."""

    class Seats:
        engine_names = ("i1", "i2", "i3", "i4")
        replicas = ("r1", "r2", "r3")

    class Idle:
        ledger = Ledger()

    current = Campaign(Seats(), Idle(), seed=1, say=print)
    current.spare(SPARED)
    restarts = [fault for fault in FAULTS.values() if fault.is_restart]
    assert {current._victim(fault) for fault in restarts for _ in range(20)} == {"i3", "i4", "r2", "r3"}
    assert {current._victim(FAULTS["worker SIGSTOP"]) for _ in range(20)} == {"i1", "i2", "i3", "i4"}
