import pytest

from tests.chaos.ledger import Row
from tests.chaos.report import merged


def row(fault: str, **more) -> Row:
    """Give a row of three occurrences."""
    values = {"times": 3, "in_flight": 4.0, "requests": 100, "lost": 0, "broken": 1, "undue": 0, "slow": 2}
    values |= {"deserved": 0, "added_p99_s": 0.5, "recovery_s": 1.0, "recovery_median_s": 1.0}
    return Row(fault=fault, **{**values, **more})


def test_rows_of_a_kind_become_one_with_sums_and_the_worst():
    """One that has not recovered has not, however soon the others did; the order is that of the kinds."""
    kinds = {"c": "c", "a": "both", "b": "both"}
    found = merged([row("a"), row("b", lost=2, in_flight=8.0, added_p99_s=0.7), row("c", recovery_s=None)], kinds)
    assert [each.fault for each in found] == ["c", "both (2 kinds)"]
    assert found[0].recovery_s is None
    both = found[1]
    assert (both.times, both.in_flight, both.requests, both.lost, both.broken, both.slow) == (6, 6.0, 200, 2, 2, 4)
    assert (both.added_p99_s, both.recovery_s) == pytest.approx((0.7, 1.0))
    assert merged([row("a"), row("b", recovery_s=None)], kinds)[0].recovery_s is None
