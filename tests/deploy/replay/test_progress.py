import io

from rich.console import Console

from deploy.replay.bar import Bar
from deploy.replay.outcome import Failure, Outcome
from deploy.replay.progress import ProgressLine, Window
from deploy.replay.report import Tally


def test_window_forgets_after_ten_seconds():
    """Times older than ten seconds count no more; totals do, and an empty window is unknown."""
    window, tally = Window(), Tally()
    for at_s, ttft_s in ((1.0, 9.0), (8.0, 0.2)):
        tally.add_sent(0.001)
        window.add_sent(at_s, 0.001)
        outcome = Outcome(lag_s=0.001, e2e_s=10.0, ttft_s=ttft_s)
        tally.add(outcome)
        window.add(at_s, outcome)
    assert window.line(10.0, tally).ttft_p50_ms == 4600.0
    line = window.line(12.0, tally)
    assert (line.sent, line.done, line.ttft_p50_ms, line.ttft_p99_ms, line.lag_ms) == (2, 2, 200.0, 200.0, 1.0)
    assert window.line(30.0, tally).ttft_p50_ms is None
    assert window.line(30.0, tally).lag_ms is None


def test_failures_have_no_ttft():
    """A request that failed after its first token does not make the TTFT look good."""
    window, tally = Window(), Tally()
    window.add(1.0, Outcome(lag_s=0.0, e2e_s=1.0, ttft_s=0.01, failure=Failure("broken stream")))
    assert window.line(1.0, tally).ttft_p50_ms is None


def test_bar_draws_what_a_line_tells():
    """The bar counts what is over, failures included, and says what is in flight."""
    out = io.StringIO()
    with Bar(Console(file=out, force_terminal=True, width=100, no_color=True), total=10) as bar:
        bar.show(ProgressLine(1.0, 7, 3, 1, None, None, None))
    assert "in flight 3, errors 1, TTFT p99 –" in out.getvalue()
    assert "4/10" in out.getvalue()
