"""Running means, the rate meter, and how much of an answer is left."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.estimates import LONG_ANSWER_TOKENS, MEAN_WEIGHT, RateMeter, RunningMean, remaining_output


def test_the_prior_counts_as_one_sample():
    """Three samples and the prior are averaged evenly."""
    mean = RunningMean(100.0)
    for sample in (200.0, 300.0, 400.0):
        mean.learn(sample)
    assert mean.value == pytest.approx(250.0)
    assert mean.samples == 3


def test_a_settled_mean_forgets():
    """After 500 samples of another size the old ones weigh less than one percent."""
    mean = RunningMean(100.0)
    for _ in range(1000):
        mean.learn(100.0)
    for _ in range(500):
        mean.learn(200.0)
    assert mean.value == pytest.approx(200.0, rel=0.01)


@pytest.mark.parametrize("sample", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_amount_is_not_a_sample(sample):
    """NaN, infinite and negative samples change nothing."""
    mean = RunningMean(100.0)
    mean.learn(sample)
    assert (mean.value, mean.samples) == (100.0, 0)


def test_one_outlier_moves_a_settled_mean_by_its_weight():
    """A hundredth of the difference."""
    mean = RunningMean(100.0)
    for _ in range(1000):
        mean.learn(100.0)
    mean.learn(1100.0)
    assert mean.value == pytest.approx(100.0 + MEAN_WEIGHT * 1000.0)


def test_an_engine_that_lost_count_moves_a_mean_by_no_more_than_a_long_answer_does():
    """A usage of 1e8 tokens among answers of 300; long answers among ever so many of one token count in full."""
    mean = RunningMean(256.0)
    for _ in range(500):
        mean.learn(300.0)
    mean.learn(1e8)
    assert mean.value <= 300 + MEAN_WEIGHT * LONG_ANSWER_TOKENS
    short = RunningMean(1.0)
    for number in range(20_000):
        short.learn(2000.0 if number % 50 == 0 else 1.0)
    assert short.value == pytest.approx(41, rel=0.35)


def test_the_rate_decays_when_nothing_comes():
    """One a second for ten minutes reads 1; a minute later it reads 1 / e, an hour later nothing."""
    meter = RateMeter()
    for second in range(600):
        meter.count(float(second))
    assert meter.per_s(599.0) == pytest.approx(1.0, rel=0.02)
    assert meter.per_s(659.0) == pytest.approx(meter.per_s(599.0) / math.e)
    assert meter.per_s(5000.0) == pytest.approx(0.0, abs=1e-6)


def test_a_meter_that_never_counted_reads_zero():
    """Nothing happened is a measurement."""
    assert RateMeter().per_s(1e6) == 0.0


def test_a_clock_that_steps_back_makes_no_rate_grow():
    """Time that seems to run backwards is taken as none."""
    meter = RateMeter()
    meter.count(100.0)
    assert meter.per_s(0.0) == meter.per_s(100.0)


def test_a_cap_bounds_what_is_left():
    """Of at most 16 tokens 10 have come: 6 are left, and after the sixteenth still one until the end is seen."""
    assert remaining_output(200, 10, 16) == 6
    assert remaining_output(200, 16, 16) == 1
    assert remaining_output(200, 40, 16) == 1


AMOUNT = st.floats(0, 1e9)


@given(AMOUNT, AMOUNT, st.one_of(st.none(), st.integers(0, 10**6)))
def test_what_is_left_is_at_least_one_token_and_finite(expected, produced, cap):
    """An answer that has not ended has something to come."""
    left = remaining_output(expected, produced, cap)
    assert 1 <= left <= max(expected, 1) * (1 + 1e-12)


@given(AMOUNT, AMOUNT, AMOUNT)
def test_what_is_left_never_grows_while_tokens_come(expected, produced, more):
    """More produced is not more to come."""
    assert remaining_output(expected, produced + more, None) <= remaining_output(expected, produced, None)
