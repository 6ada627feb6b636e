"""Calibration: converges from wrong priors, follows what lasts, and one outlier moves it only so far."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.calibration import Calibration
from workers.linear_fit import CLIP_DEVIATIONS, LEAST_DEVIATION, LinearFit

#: A real engine of these tests: 20 ms and 0.25 ms a prompt token; a step of 8 ms and 0.5 ms a running request.
FIXED_S, PER_TOKEN_S = 0.020, 0.000_25
BASE_S, PER_REQUEST_S = 0.008, 0.0005

#: Its speeds as a prior would state them.
TOKENS_PER_S, STEP_S = 1 / PER_TOKEN_S, 0.010


def prefill_s(tokens: float) -> float:
    """What the engine really takes."""
    return FIXED_S + tokens * PER_TOKEN_S


def step_s(running: float) -> float:
    """What a step of the engine really takes."""
    return BASE_S + running * PER_REQUEST_S


def teach(calibration: Calibration, samples: int, rng: random.Random, *, noise: float = 0.1, slow: float = 1.0) -> None:
    """Show `samples` prefills and decodes of the engine, `slow` times as slow, give or take `noise`."""
    for _ in range(samples):
        tokens, running = round(math.exp(rng.uniform(math.log(30), math.log(4000)))), rng.uniform(1, 16)
        calibration.learn_prefill(tokens, slow * prefill_s(tokens) * rng.uniform(1 - noise, 1 + noise))
        calibration.learn_decode_step(running, slow * step_s(running) * rng.uniform(1 - noise, 1 + noise))


def settled(rng: random.Random) -> Calibration:
    """A calibration that knows the engine."""
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=STEP_S)
    teach(calibration, 200, rng)
    return calibration


@pytest.mark.parametrize("factor", [3.0, 1.0, 1 / 3])
@pytest.mark.parametrize("seed", range(5))
def test_priors_wrong_by_a_factor_of_three_are_unlearned(factor, seed):
    """After 100 samples every prediction in the range seen is within a tenth of the truth."""
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S * factor, decode_step_s=STEP_S / factor)
    teach(calibration, 100, random.Random(seed))
    for tokens in (50, 500, 1024, 3900):
        assert calibration.prefill_s(tokens) == pytest.approx(prefill_s(tokens), rel=0.10)
    for running in (1, 8, 16):
        assert calibration.decode_step_s(running) == pytest.approx(step_s(running), rel=0.10)
    assert calibration.prefill_tokens_per_s == pytest.approx(1024 / prefill_s(1024), rel=0.10)
    assert (calibration.prefill_samples, calibration.decode_samples) == (100, 100)


@pytest.mark.parametrize("slow", [3.0, 1 / 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_lasting_change_is_followed_within_some_tens_of_requests(slow, seed):
    """An engine that becomes three times as slow, or as fast, is known again after 20 requests."""
    rng = random.Random(seed)
    calibration = settled(rng)
    teach(calibration, 20, rng, slow=slow)
    for tokens in (100, 1024, 3900):
        assert calibration.prefill_s(tokens) == pytest.approx(slow * prefill_s(tokens), rel=0.15)
    assert calibration.decode_step_s(8) == pytest.approx(slow * step_s(8), rel=0.15)


@pytest.mark.parametrize("factor", [1000.0, 1 / 1000])
def test_a_few_outliers_in_a_row_are_no_lasting_change(factor):
    """Four samples in a row a thousand times off move the line by less than a tenth; a good one between resets it."""
    rng = random.Random(7)
    calibration = settled(rng)
    for _ in range(3):
        for _ in range(4):
            calibration.learn_prefill(1024, factor * prefill_s(1024))
        assert calibration.prefill_s(1024) == pytest.approx(prefill_s(1024), rel=0.10)
        teach(calibration, 50, rng)


@pytest.mark.parametrize("slow", [3.0, 1 / 3])
def test_a_lasting_change_is_followed_from_plain_answers_too(slow):
    """Where only ends of answers are seen, 40 of them after 300 at another pace are enough for 20 %."""
    rng = random.Random(2)
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=STEP_S)
    for number in range(340):
        tokens, output, running = rng.randint(50, 3000), rng.randint(10, 400), rng.randint(1, 12)
        seconds = tokens * PER_TOKEN_S + output * step_s(running)
        pace = slow if number >= 300 else 1.0
        calibration.learn_whole_answer(tokens, output, running, pace * seconds * rng.uniform(0.8, 1.2))
    assert calibration.prefill_s(1024) == pytest.approx(slow * 1024 * PER_TOKEN_S, rel=0.20)
    assert calibration.decode_step_s(8) == pytest.approx(slow * step_s(8), rel=0.20)


@pytest.mark.parametrize("seed", range(5))
def test_after_a_doubt_one_faster_sample_is_another_pace_and_a_slower_one_is_not(seed):
    """Ten times as fast is believed at once, and once only; ten times as slow moves the line by little."""
    rng = random.Random(seed)
    calibration = settled(rng)
    calibration.learn_prefill(1024, 0.1 * prefill_s(1024))
    assert calibration.prefill_s(1024) == pytest.approx(prefill_s(1024), rel=0.10)
    calibration.doubt()
    calibration.learn_prefill(1024, 10 * prefill_s(1024))
    assert calibration.prefill_s(1024) == pytest.approx(prefill_s(1024), rel=0.15)
    calibration.doubt()
    calibration.learn_prefill(1024, 0.1 * prefill_s(1024))
    calibration.learn_decode_step(8, 0.1 * step_s(8))
    assert calibration.prefill_s(1024) == pytest.approx(0.1 * prefill_s(1024), rel=0.10)
    assert calibration.decode_step_s(8) == pytest.approx(0.1 * step_s(8), rel=0.10)


def test_a_prior_is_a_shape_as_soon_as_one_sample_is_faster_and_gives_way_slowly_to_a_slower_one():
    """Beside twins that are known it must not look slow for as long as a prior is remembered, nor after a warm-up."""
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=STEP_S)
    calibration.learn_prefill(1024, 0.25 * 1024 / TOKENS_PER_S)
    calibration.learn_decode_step(8, 0.25 * STEP_S)
    assert calibration.prefill_s(2048) == pytest.approx(0.25 * 2048 / TOKENS_PER_S, rel=0.05)
    assert calibration.decode_step_s(8) == pytest.approx(0.25 * STEP_S, rel=0.05)
    warming_up = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=STEP_S)
    warming_up.learn_prefill(1024, 4 * 1024 / TOKENS_PER_S)
    assert warming_up.prefill_s(1024) <= 3 * 1024 / TOKENS_PER_S


def test_after_a_doubt_one_faster_plain_answer_is_another_pace():
    """Where only ends of answers are seen."""
    rng = random.Random(3)
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=STEP_S)

    def answer(pace: float) -> None:
        tokens, output, running = rng.randint(50, 3000), rng.randint(100, 400), rng.randint(1, 12)
        calibration.learn_whole_answer(
            tokens, output, running, pace * (tokens * PER_TOKEN_S + output * step_s(running))
        )

    for _ in range(300):
        answer(5.0)
    calibration.doubt()
    answer(1.0)
    assert calibration.decode_step_s(8) == pytest.approx(step_s(8), rel=0.25)


def test_after_a_doubt_what_disagrees_by_little_is_followed_sooner():
    """A quarter too slow, with fifty samples behind it: three samples after doubts take most of that away."""
    line, sure = (LinearFit(fixed=1.0, slope=0.0, at=(1.0, 8.0)) for _ in range(2))
    for _ in range(200):
        line.learn(4.0, 1.25)
        sure.learn(4.0, 1.25)
    for _ in range(3):
        line.doubt()
        line.learn(4.0, 1.0)
        sure.learn(4.0, 1.0)
    assert line.at(4.0) < 1.1
    assert sure.at(4.0) > 1.2


def test_batches_of_one_size_leave_the_slope_at_its_prior_share():
    """An engine that was only ever seen with one request running: a step is known, a further request adds some 2 %."""
    calibration = Calibration(prefill_tokens_per_s=TOKENS_PER_S, decode_step_s=3 * STEP_S)
    for _ in range(100):
        calibration.learn_decode_step(1, STEP_S)
    assert calibration.decode_step_s(1) == pytest.approx(STEP_S, rel=0.02)
    assert calibration.decode_slope_s == pytest.approx(0.02 * STEP_S, rel=0.5)


def test_what_prefills_take_of_decodes_is_learned_apart():
    """Prefills take a third of each decode: the step stays what it is, and an interrupted one is half as long again."""
    calibration = settled(random.Random(6))
    for _ in range(300):
        calibration.learn_interruptions(2.0, 3.0)
    assert calibration.decode_step_s(8) == pytest.approx(step_s(8), rel=0.10)
    assert calibration.interrupted_step_s(8) == pytest.approx(1.5 * calibration.decode_step_s(8), rel=0.02)


@pytest.mark.parametrize("factor", [1000.0, 1 / 1000])
def test_one_outlier_moves_the_prediction_by_little(factor):
    """A sample a thousand times off moves the line by less than a tenth, at its place and elsewhere."""
    calibration = settled(random.Random(3))
    before = {tokens: calibration.prefill_s(tokens) for tokens in (100, 1024, 3900)}
    calibration.learn_prefill(1024, factor * prefill_s(1024))
    for tokens, seconds in before.items():
        assert calibration.prefill_s(tokens) == pytest.approx(seconds, rel=0.10)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_duration_teaches_nothing(seconds):
    """Zero, negative, NaN and infinite times are not samples."""
    calibration = settled(random.Random(4))
    before = (calibration.prefill_s(1024), calibration.decode_step_s(8), calibration.prefill_samples)
    calibration.learn_prefill(1024, seconds)
    calibration.learn_decode_step(8, seconds)
    assert (calibration.prefill_s(1024), calibration.decode_step_s(8), calibration.prefill_samples) == before


@pytest.mark.parametrize("tokens", [-1.0, math.nan, math.inf])
def test_what_is_no_amount_teaches_nothing(tokens):
    """Negative, NaN and infinite amounts are not samples."""
    calibration = settled(random.Random(5))
    before = calibration.prefill_s(1024)
    calibration.learn_prefill(tokens, 1.0)
    assert calibration.prefill_s(1024) == before


def test_all_samples_at_one_place_scale_the_line():
    """With prompts of one length only, that length is learned, and the others in proportion."""
    calibration = Calibration(prefill_tokens_per_s=1000.0, decode_step_s=0.010)
    for _ in range(400):
        calibration.learn_prefill(500, 1.5)
    assert calibration.prefill_s(500) == pytest.approx(1.5, rel=0.01)
    assert calibration.prefill_s(1000) > calibration.prefill_s(500)


REASONABLE = st.floats(1e-6, 1e6)
ANYTHING = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(st.one_of(REASONABLE, ANYTHING), st.one_of(REASONABLE, ANYTHING)), max_size=60))
def test_predictions_stay_positive_and_finite_whatever_is_learned(samples):
    """No sequence of samples makes a speed zero, negative, infinite or NaN."""
    calibration = Calibration(prefill_tokens_per_s=4000.0, decode_step_s=0.030)
    for x, y in samples:
        calibration.learn_prefill(x, y)
        calibration.learn_decode_step(x, y)
        for amount in (1, 1024, 10**12):
            assert 0 < calibration.prefill_s(amount) < math.inf
        assert 0 < calibration.decode_step_s(64) < math.inf
        assert 0 < calibration.prefill_tokens_per_s < math.inf


@given(st.floats(1e-9, 1e9))
def test_a_clipped_sample_moves_its_place_no_further_than_the_clip(y):
    """One sample on a settled line moves the prediction there at most to prediction × exp(±3 deviations)."""
    line = LinearFit(fixed=1.0, slope=0.01, at=(10.0, 1000.0))
    for index in range(300):
        line.learn(10.0 + 33.0 * (index % 30), 1.0 + 0.01 * (10.0 + 33.0 * (index % 30)))
    before = line.at(500.0)
    line.learn(500.0, y)
    assert abs(math.log(line.at(500.0) / before)) <= CLIP_DEVIATIONS * LEAST_DEVIATION * 1.5
