import pytest

from tests.chaos.answers import Ending
from tests.chaos.ledger import ROW, Call, Deserts, Ledger, Span, Verdict, rows


def call(number: int, sent_s: float, *, wait_s: float | None = 0.1, ending: Ending = Ending.WHOLE, **more) -> Call:
    """Give a stream that is over."""
    first_s = None if wait_s is None else sent_s + wait_s
    return Call(number, True, 8, sent_s, first_s, sent_s + 1.0, ending, **more)


@pytest.fixture
def ledger() -> Ledger:
    """Give a quiet second, and a fault from 100 s to 103 s that is settled at 105 s."""
    ledger = Ledger()
    ledger.calls = [call(number, number / 100) for number in range(100)]
    ledger.spans = [Span("it", Deserts(), 100.0, 103.0, 105.0, in_flight=3)]
    return ledger


VERDICTS = {
    "whole": (call(0, 101), Deserts(), Verdict.ANSWERED, True),
    "nothing came": (call(0, 101, wait_s=None, ending=Ending.NOTHING), Deserts(), Verdict.LOST, False),
    "an error": (call(0, 101, wait_s=None, ending=Ending.REFUSED, status=502), Deserts(), Verdict.LOST, False),
    "the engine's error, which passes": (
        call(0, 101, wait_s=None, ending=Ending.REFUSED, status=401),
        Deserts(frozenset({401})),
        Verdict.DESERVED,
        True,
    ),
    "that error without a shape": (
        call(0, 101, wait_s=None, ending=Ending.MALFORMED, status=401),
        Deserts(frozenset({401})),
        Verdict.LOST,
        False,
    ),
    "an error event before any content": (
        call(0, 101, wait_s=None, ending=Ending.ERROR_EVENT),
        Deserts(breaks_streams=True),
        Verdict.LOST,
        False,
    ),
    "broken": (call(0, 101, ending=Ending.ERROR_EVENT), Deserts(breaks_streams=True), Verdict.BROKEN, True),
    "broken for no reason": (call(0, 101, ending=Ending.ERROR_EVENT), Deserts(), Verdict.BROKEN, False),
    "cut": (call(0, 101, ending=Ending.CUT), Deserts(breaks_streams=True), Verdict.BROKEN_UNTOLD, False),
    "cut by who cannot tell": (
        call(0, 101, ending=Ending.CUT),
        Deserts(breaks_streams=True, untold=True),
        Verdict.BROKEN_UNTOLD,
        True,
    ),
    "forged": (
        call(0, 101, ending=Ending.FORGED),
        Deserts(breaks_streams=True, untold=True),
        Verdict.BROKEN_UNTOLD,
        False,
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_request_gets_what_its_fault_deserves_or_is_lost(ledger, name):
    """Before its first event only the engine's own error excuses, after it only a fault that breaks streams."""
    one, deserts, verdict, is_allowed = VERDICTS[name]
    ledger.spans[0].deserts = deserts
    assert ledger.verdict(one) is verdict
    assert ledger.is_allowed(one) is is_allowed


def test_a_fault_excuses_nobody_who_did_not_live_through_it(ledger):
    """A stream that breaks before the fault, or after all was as before, broke without a reason."""
    ledger.spans[0].deserts = Deserts(breaks_streams=True)
    assert ledger.is_allowed(call(0, 99.5, ending=Ending.ERROR_EVENT))
    assert ledger.is_allowed(call(0, 104.9, ending=Ending.ERROR_EVENT))
    assert not ledger.is_allowed(call(0, 98.5, ending=Ending.ERROR_EVENT))
    assert not ledger.is_allowed(call(0, 105.1, ending=Ending.ERROR_EVENT))


@pytest.mark.parametrize(
    ("dropped_by", "drops", "sent_s", "is_lost"),
    [
        ([], False, 101.0, False),
        (["r1"], True, 101.0, False),
        (["r1"], True, 105.5, True),
        (["r1"], False, 101.0, True),
        (["r2"], True, 101.0, True),
        (["r1", "r2"], True, 101.0, True),
    ],
    ids=["by nobody", "killed", "before or after", "told to end", "another", "another too"],
)
def test_what_a_replica_dropped_is_lost_unless_it_was_killed(ledger, dropped_by, drops, sent_s, is_lost):
    """That the balancer sent it again, and that it was answered in the end, excuses nobody."""
    ledger.spans[0].deserts, ledger.spans[0].replica = Deserts(drops=drops), "r1"
    one = call(0, sent_s, replica="r3", dropped_by=dropped_by)
    assert ledger.verdict(one) is (Verdict.LOST if is_lost else Verdict.ANSWERED)
    assert ledger.is_allowed(one) is not is_lost


def test_a_killed_replica_excuses_no_stream_of_another_one(ledger):
    """Its own break; those of the others have no reason to."""
    ledger.spans[0].deserts, ledger.spans[0].replica = Deserts(breaks_streams=True, untold=True), "r1"
    assert ledger.is_allowed(call(0, 101, ending=Ending.CUT, replica="r1"))
    assert not ledger.is_allowed(call(0, 101, ending=Ending.CUT, replica="r2"))


def test_recovery_is_the_first_of_twenty_unaffected_in_a_row(ledger):
    """A slow, a failed and a running request each begin the row anew."""
    ledger.calls += [call(number, 100 + number / 10) for number in range(60)]
    assert ledger.recovery_s(100.0) == 0.0
    ledger.calls[100 + 5] = call(0, 100.5, wait_s=2.0)
    assert ledger.recovery_s(100.0) == pytest.approx(0.6)
    ledger.calls[100 + 25] = call(0, 102.5, ending=Ending.ERROR_EVENT)
    assert ledger.recovery_s(100.0) == pytest.approx(2.6)
    ledger.calls[100 + 45] = Call(0, True, 8, 104.5)
    assert ledger.recovery_s(100.0) is None
    assert ROW == 20


def test_a_row_counts_each_request_once_and_shows_what_its_fault_added(ledger):
    """Requests under way, lost and broken are counted; the wait is compared with the quiet time of the same run."""
    ledger.calls += [call(200 + number, 100 + number / 10, wait_s=0.3) for number in range(30)]
    ledger.calls += [call(300, 100.5, wait_s=None, ending=Ending.NOTHING), call(301, 100.5, ending=Ending.CUT)]
    (row,) = rows(ledger)
    assert (row.times, row.in_flight, row.requests, row.lost, row.broken, row.undue) == (1, 3, 32, 1, 1, 2)
    assert row.added_p99_s == pytest.approx(0.2)
