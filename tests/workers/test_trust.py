"""How long what was learned is believed."""

import pytest

from workers.trust import BELIEVED_S, LONGEST_BELIEVED_S, Trust


def believed_s(trust: Trust, now: float) -> float:
    """Give for how long something is believed from `now` on."""
    passed_s = 0.0
    while not trust.is_over(now + passed_s):
        passed_s += 1.0
    return passed_s


def test_what_was_never_learned_needs_no_doubt():
    """It is unknown anyway, and what is told a calibration by other ways stays told."""
    assert not Trust().is_over(1e9)


def test_who_proves_to_be_what_it_was_thought_to_be_is_believed_for_longer_each_time():
    """Half a minute, one, two, four, and no longer."""
    trust, now, periods = Trust(), 0.0, []
    for _ in range(6):
        trust.renew([1.0, 2.0], [1.05, 1.9], now)
        periods.append(believed_s(trust, now))
        now += periods[-1]
    assert periods == [BELIEVED_S, 60, 120, LONGEST_BELIEVED_S, LONGEST_BELIEVED_S, LONGEST_BELIEVED_S]


@pytest.mark.parametrize("times_s", [[1.2, 2.0], [1.0, 1.7]])
def test_who_has_changed_is_doubted_as_soon_as_at_first(times_s):
    """Slower or faster, by either of its times."""
    trust, now = Trust(), 0.0
    for _ in range(4):
        trust.renew([1.0, 2.0], [1.0, 2.0], now)
        now += LONGEST_BELIEVED_S
    trust.renew([1.0, 2.0], times_s, now)
    assert believed_s(trust, now) == BELIEVED_S


def test_in_use_it_is_believed_for_no_longer_each_time():
    """Only a look after a silence says something of the time between."""
    trust = Trust()
    for second in range(100):
        trust.renew([1.0], [1.0], float(second))
    assert believed_s(trust, 99.0) == BELIEVED_S
