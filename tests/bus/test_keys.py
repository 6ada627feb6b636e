import pytest

from bus.errors import InvalidName
from bus.keys import instances_key, pressure_key


def test_all_keys_of_a_pool_share_one_hash_tag():
    """Redis Cluster places what stands between the first braces: the pool, in every key."""
    keys = [pressure_key("blue", "a"), pressure_key("blue", "b:8000"), instances_key("blue")]

    assert {key[key.index("{") : key.index("}") + 1] for key in keys} == {"{blue}"}
    assert len(set(keys)) == 3


def test_no_instance_can_take_the_key_of_another_pool_or_of_the_registrations():
    """Names of pools have no colon, so that no two pairs of pool and instance share a key."""
    with pytest.raises(InvalidName):
        pressure_key("a}:pressure:b", "c")
    with pytest.raises(InvalidName):
        pressure_key("a:b", "c")


@pytest.mark.parametrize("bad", ["", "a b", "a{b}", "a\n", "ä", "a\x00", "*", "x" * 129, "a/b", "١"])
def test_a_name_that_cannot_be_part_of_a_key_is_refused_by_name(bad):
    """Neither instance nor pool may hold what would change the meaning of a key."""
    with pytest.raises(InvalidName, match="instance id"):
        pressure_key("default", bad)
    with pytest.raises(InvalidName, match="pool"):
        instances_key(bad)


def test_a_long_bad_name_is_cut_in_the_message():
    """A megabyte for a name does not become a megabyte of log."""
    with pytest.raises(InvalidName) as refused:
        pressure_key("default", "x" * 1_000_000)

    assert len(str(refused.value)) < 200
