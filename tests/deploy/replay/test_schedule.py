import pytest

from deploy.replay.schedule import Plan, schedule
from deploy.replay.traces import TraceRow

ROWS = [TraceRow(100.0, 1, 1), TraceRow(101.0, 2, 1), TraceRow(104.0, 3, 1), TraceRow(110.0, 4, 1)]


def due_times(plan: Plan, rows: list[TraceRow] = ROWS) -> list[float]:
    """The seconds at which a plan sends."""
    return [due.due_s for due in schedule(plan, lambda: iter(rows))]


def test_gaps_are_those_of_the_trace():
    """Without a speedup requests come as they came, counted from the first."""
    assert due_times(Plan()) == [0.0, 1.0, 4.0, 10.0]


def test_speedup_shortens_every_gap():
    """Twice as fast halves every gap."""
    assert due_times(Plan(speedup=2)) == [0.0, 0.5, 2.0, 5.0]


def test_rate_rescales_the_chosen_rows_to_a_mean():
    """Rows 2 to 4 come at 2 / 9 requests/s; asked for 1 requests/s they take 2 s."""
    assert due_times(Plan(start=1, rate=1.0)) == pytest.approx([0.0, 2 / 3, 2.0])


def test_rate_of_a_limited_replay_is_that_of_its_own_rows():
    """Rows that are not sent do not count for the rate."""
    assert due_times(Plan(limit=2, rate=4.0)) == [0.0, 0.25]


def test_rate_without_a_span_is_refused():
    """One moment has no rate."""
    with pytest.raises(ValueError, match="--rate"):
        due_times(Plan(rate=1.0), [TraceRow(1.0, 1, 1)])


def test_loop_goes_on_one_mean_gap_after_the_last_row():
    """Ten seconds in three gaps: the second pass begins 10 / 3 s after the end of the first."""
    assert due_times(Plan(loop=True, limit=6)) == pytest.approx([0, 1, 4, 10, 10 + 10 / 3, 11 + 10 / 3])


def test_loop_over_nothing_ends():
    """A start beyond the end sends nothing, even when told to repeat."""
    assert due_times(Plan(loop=True, start=9)) == []
