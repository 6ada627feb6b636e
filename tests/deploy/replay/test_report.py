import random

import pytest

from deploy.replay.outcome import Failure, Outcome
from deploy.replay.report import Tally, percentiles, summarise
from deploy.replay.report_view import plain_text


def tally_of(*outcomes: Outcome, lag_s: float = 0.0) -> Tally:
    """A tally of requests that were all sent this late."""
    tally = Tally()
    for outcome in outcomes:
        tally.add_sent(lag_s)
        tally.add(outcome)
    return tally


GOOD = Outcome(lag_s=0.0, e2e_s=2.0, ttft_s=0.5, tpot_s=0.05, prompt_tokens=100, output_tokens=31, instance="e1")


def test_percentiles_by_hand():
    """1 to 101: the median is 51, p90 is 91, p99 is 100, whatever the order."""
    values = [float(value) for value in range(1, 102)]
    random.Random(1).shuffle(values)
    found = percentiles(values)
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.max, found.n) == pytest.approx((51, 91, 100, 101, 101))


def test_percentiles_lie_between_neighbours():
    """Of 10 and 20 the p90 is nine tenths of the way."""
    found = percentiles([20.0, 10.0])
    assert found is not None
    assert (found.p50, found.p90) == (15.0, 19.0)


def test_percentiles_of_nothing_are_unknown():
    """No measurement is no zero."""
    assert percentiles([]) is None


def test_report_adds_up():
    """Rates count answered requests only, shares are by instance, times are milliseconds."""
    report = summarise(tally_of(GOOD, GOOD), duration_s=4.0)
    assert (report.requests_per_s, report.output_tokens_per_s, report.prompt_tokens_per_s) == (0.5, 15.5, 50.0)
    assert (report.ttft_ms.p50, report.tpot_ms.p50, report.e2e_ms.p50) == (500.0, 50.0, 2000.0)
    assert report.instances == {"e1": 2}


def test_errors_are_counted_by_class_and_kept_out_of_the_times():
    """A fast failure must not look like a fast answer; the first of each class is the example."""
    bad = [Outcome(lag_s=0.0, e2e_s=0.001, failure=Failure("status 503", text)) for text in ("first", "second")]
    report = summarise(tally_of(GOOD, *bad), duration_s=1.0)
    assert (report.answered, report.failed) == (1, 2)
    assert report.errors["status 503"].count == 2
    assert report.errors["status 503"].example == "first"
    assert report.e2e_ms.n == 1


@pytest.mark.parametrize(("lag_s", "is_void"), [(0.049, False), (0.051, True)])
def test_late_client_makes_the_report_void(lag_s, is_void):
    """Above the bound the report says that it says nothing."""
    report = summarise(tally_of(GOOD, lag_s=lag_s), duration_s=1.0, lag_bound_ms=50.0)
    assert report.is_void is is_void
    assert ("VOID" in plain_text(report)) is is_void


def test_unknown_tokens_stay_unknown():
    """A server without usage has no token rate, and the text shows a dash."""
    silent = Outcome(lag_s=0.0, e2e_s=2.0, ttft_s=0.5)
    report = summarise(tally_of(silent), duration_s=1.0)
    assert (report.output_tokens, report.output_tokens_per_s, report.tpot_ms) == (None, None, None)
    assert "output tokens/s –" in plain_text(report)


def test_plain_text_is_plain():
    """Elsewhere than on a terminal there are no escape codes, and brackets in a message are only brackets."""
    odd = Outcome(lag_s=0.0, e2e_s=0.1, failure=Failure("error event", "[red]not a colour[/] [/nor a tag]"))
    text = plain_text(summarise(tally_of(odd, GOOD), duration_s=1.0))
    assert "\x1b" not in text
    assert "[red]not a colour[/] [/nor a tag]" in text
    assert "1 of 2 requests answered in 1.0 s, 1 failed" in text
