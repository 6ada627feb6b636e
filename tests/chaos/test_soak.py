"""What counts as growth: a leak does, a rush does not."""

import pytest

from tests.chaos.soak import Sample, growth


def samples(fds, memory_mb=lambda _: 50.0):
    """Looks of 400 s, one each two."""
    return [Sample(float(at_s), memory_mb(at_s), fds(at_s)) for at_s in range(0, 400, 2)]


def found(looks):
    """Growth over the whole of them."""
    result = growth("worker", looks, began_s=0.0, ended_s=400.0)
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
    """Its first minute of work is no growth."""
    assert growth("worker", samples(lambda _: 40)[40:], began_s=0.0, ended_s=400.0) is None
