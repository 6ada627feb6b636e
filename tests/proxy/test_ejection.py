"""Instances that just failed are left alone for a moment, never for ever, and never all."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.ejection import FIRST_PAUSE_S, LONGEST_PAUSE_S, Ejections


def test_the_pause_doubles_up_to_its_limit_and_a_success_ends_it():
    """Half a second, one, two … ten; then as good as any, and the first pause again."""
    ejections, now, pauses = Ejections(), 0.0, []
    for _ in range(8):
        ejections.failed("a", now)
        pause_s = 0.0
        while ejections.is_out("a", now + pause_s):
            pause_s += 0.25
        pauses.append(pause_s)
        now += pause_s
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    ejections.succeeded("a")
    assert not ejections.is_out("a", now)
    ejections.failed("a", now)
    assert not ejections.is_out("a", now + FIRST_PAUSE_S)


def test_failures_that_were_under_way_do_not_lengthen_a_pause():
    """Fifty requests that fail in the same instant are one failure."""
    ejections = Ejections()
    for index in range(50):
        ejections.failed("a", index * 0.001)
    assert not ejections.is_out("a", FIRST_PAUSE_S)


def test_when_all_are_out_all_are_tried():
    """Trying beats refusing."""
    ejections = Ejections()
    for name in "ab":
        ejections.failed(name, 0.0)
    assert ejections.usable("ab", 0.1) == ["a", "b"]
    assert ejections.usable("abc", 0.1) == ["c"]


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 20)), max_size=40)


@given(EVENTS)
def test_nobody_is_out_longer_than_the_longest_pause(events):
    """Whatever happened before."""
    ejections, now = Ejections(), 0.0
    for name, is_failure, later_s in events:
        if is_failure:
            ejections.failed(name, now)
        else:
            ejections.succeeded(name)
        assert ejections.usable("abc", now)
        assert not ejections.is_out(name, now + LONGEST_PAUSE_S)
        now += later_s


def test_what_is_gone_is_forgotten():
    """State is as large as the fleet; nothing is held against who comes back under an old name."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    ejections.failed("b", 0.0)
    ejections.forget_all_but(["b", "c"])
    assert not ejections.is_out("a", 0.1)
    assert ejections.is_out("b", 0.1)
