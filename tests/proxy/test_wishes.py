"""What a client may say to the gateway itself, and what is answered 400."""

import pytest

from proxy.facts import BadRequest
from proxy.wishes import Wishes, read_wishes


def test_who_says_nothing_is_normal_and_waits_for_ever():
    """Neither header is needed."""
    assert read_wishes({}) == Wishes("normal", None)


@pytest.mark.parametrize("said", ["HIGH", " low ", "normal"])
def test_a_priority_is_read_whatever_its_case(said):
    """As header values are."""
    assert read_wishes({"x-forebay-priority": said}).priority == said.strip().lower()


@pytest.mark.parametrize("said", ["", "urgent", "1", "high,low"])
def test_any_other_priority_is_the_clients_error(said):
    """Named, with what is allowed."""
    with pytest.raises(BadRequest, match="high, normal, low") as refused:
        read_wishes({"x-forebay-priority": said})
    assert refused.value.param == "x-forebay-priority"


@pytest.mark.parametrize("said", ["", "0", "-1", "1.5", "NaN", "1e3", "86400001", "\u0663", "9" * 5000])
def test_a_time_limit_that_is_none_is_the_clients_error(said):
    """A limit that is ignored would be worse than an error."""
    with pytest.raises(BadRequest, match="from 1 to 86400000"):
        read_wishes({"x-forebay-timeout-ms": said})
