import pytest

from tests.chaos.answers import Ending
from tests.chaos.ledger import Call, Deserts, Ledger, Row, Span
from tests.chaos.report import Report, merged, report, text


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


def reported(*calls: Call) -> Report:
    """Give the report of a run with one fault, from 100 s to 105 s, that was recovered from."""
    ledger = Ledger()
    ledger.calls = [whole(number, number / 100) for number in range(100)]
    ledger.calls += [whole(100 + number, 100.0 + number / 100) for number in range(30)]
    ledger.calls += calls
    ledger.calls.sort(key=lambda call: call.sent_s)
    ledger.spans = [Span("worker SIGKILL", Deserts(), 100.0, 103.0, 105.0)]
    return report(ledger, seed=1, command="", skipped={}, left={}, lag_s=0.0)


def whole(number: int, sent_s: float) -> Call:
    """Give a stream that was answered."""
    return Call(number, True, 8, sent_s, sent_s + 0.1, sent_s + 0.2, Ending.WHOLE)


def test_nothing_is_missed_where_all_were_answered():
    """The row of the fault is there, and no line beside it."""
    found = reported()
    assert [row.fault for row in found.rows] == ["worker SIGKILL"]
    assert found.missed == []
    assert text(found).endswith("every aim reached")


@pytest.mark.parametrize("sent_s", [50.0, 101.0, 200.0], ids=["before", "within", "after"])
@pytest.mark.parametrize(
    "ended",
    [
        {"ended_s": 0.5, "ending": Ending.NOTHING},
        {"ended_s": 0.5, "ending": Ending.CUT, "first_s": 0.1},
        {"ended_s": 0.5, "ending": Ending.WHOLE, "first_s": 0.1, "dropped_by": ["r1"]},
        {},
    ],
    ids=["lost", "broken", "dropped", "running"],
)
def test_a_request_is_missed_whether_or_not_a_fault_was_near(sent_s, ended):
    """Lost, broken for no reason, dropped or not over: a line, and not every aim is reached."""
    times = {name: sent_s + value for name, value in ended.items() if name.endswith("_s")}
    found = reported(Call(999, True, 8, sent_s, **{**ended, **times}))
    assert [line.split(" (")[0] for line in found.missed] == ["stream request 999"]
    assert "every aim reached" not in text(found)


def test_of_many_missed_requests_people_see_some_and_machines_all():
    """Their number is told."""
    found = reported(*(Call(999, True, 8, 200.0 + n, None, 201.0 + n, Ending.NOTHING) for n in range(50)))
    assert len(found.missed) == 50
    assert text(found).count("FAULT   stream request") == 40
    assert "FAULT   and 10 more" in text(found)
