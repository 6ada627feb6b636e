"""Round robin among those that tie, also while they come and go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.rotation import Rotation

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


def turn(rotation: Rotation, instances: list[str]) -> str:
    """Choose the one whose turn it is."""
    chosen = rotation.first(instances)
    rotation.note(chosen)
    return chosen


@given(NAMES, st.integers(0, 2**32))
def test_everybody_has_their_turn_before_anybody_has_a_second(instances, offset):
    """In the same order every round."""
    rotation = Rotation(offset)
    rounds = [[turn(rotation, instances) for _ in instances] for _ in range(3)]
    assert sorted(rounds[0]) == sorted(instances)
    assert rounds[0] == rounds[1] == rounds[2]


def test_replicas_begin_at_different_instances():
    """Sixteen fresh replicas do not all send their first request to the same place."""
    firsts = Counter(Rotation.of_replica(f"host:{port}").first(list("abcdefgh")) for port in range(8000, 8064))
    assert len(firsts) == 8
    assert max(firsts.values()) <= 64 / 8 * 3


@given(st.lists(NAMES, min_size=1, max_size=60), st.integers(0, 100))
def test_with_a_changing_set_nobody_is_passed_over_for_ever(sets, offset):
    """Whoever is chosen is the one of the set that waited longest; a newcomer is first."""
    rotation, last = Rotation(offset), {}
    for count, instances in enumerate(sets, 1):
        chosen = turn(rotation, instances)
        assert last.get(chosen, 0) == min(last.get(name, 0) for name in instances)
        last[chosen] = count


@given(NAMES, st.integers(0, 100))
def test_the_order_begins_with_whose_turn_it_is(instances, offset):
    """And names everybody once."""
    rotation = Rotation(offset)
    turn(rotation, instances)
    order = sorted(instances, key=rotation.turns(instances))
    assert order[0] == rotation.first(instances)
    assert len({rotation.turns(instances)(name) for name in instances}) == len(set(instances))


def test_what_is_gone_is_forgotten():
    """State is as large as the fleet, and who comes back is new."""
    rotation = Rotation(0)
    for _ in range(4):
        turn(rotation, ["a", "b"])
    rotation.forget_all_but(["b", "c"])
    assert set(rotation._last_turns) == {"b"}
    assert turn(rotation, ["a", "b"]) == "a"
