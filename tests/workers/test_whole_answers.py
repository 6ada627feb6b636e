"""Three speeds learned together from the ends of plain answers."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.calibration import Calibration
from workers.whole_answers import WholeAnswers

TOKEN_S, STEP_S, RUNNING_S = 0.000_12, 0.008, 0.0005


def teach(answers: WholeAnswers, count: int, seed: int, *, slow: float = 1.0, noise: float = 0.1) -> None:
    """Show answers of an engine of known speeds, give or take `noise`."""
    rng = random.Random(seed)
    for _ in range(count):
        prompt, output, running = rng.randint(50, 4000), rng.randint(1, 400), rng.randint(1, 16)
        seconds = prompt * TOKEN_S + output * (STEP_S + running * RUNNING_S)
        answers.learn(prompt, output, running, slow * seconds * rng.uniform(1 - noise, 1 + noise))


@pytest.mark.parametrize("prefill", [3.0, 1 / 3])
@pytest.mark.parametrize("decode", [3.0, 1 / 3])
@pytest.mark.parametrize("seed", range(3))
def test_wrong_priors_are_unlearned_each_by_itself(prefill, decode, seed):
    """Prefill and decode wrong by a factor of three, in the same or in opposite directions."""
    answers = WholeAnswers(prompt_token_s=TOKEN_S * prefill, step_s=STEP_S * decode)
    teach(answers, 300, seed)
    assert answers.prompt_token_s == pytest.approx(TOKEN_S, rel=0.2)
    assert answers.step_s(8) == pytest.approx(STEP_S + 8 * RUNNING_S, rel=0.1)


def test_a_lasting_change_is_followed():
    """An engine three times as slow is known after four times the memory."""
    answers = WholeAnswers(prompt_token_s=TOKEN_S, step_s=STEP_S)
    teach(answers, 300, 1)
    teach(answers, 800, 2, slow=3.0)
    assert answers.step_s(8) == pytest.approx(3 * (STEP_S + 8 * RUNNING_S), rel=0.15)


@pytest.mark.parametrize("seconds", [1e4, 1e-4])
def test_one_outlier_moves_little(seconds):
    """A time a thousand times off moves the step by less than a fifth."""
    answers = WholeAnswers(prompt_token_s=TOKEN_S, step_s=STEP_S)
    teach(answers, 300, 3)
    before = answers.step_s(8)
    answers.learn(1000, 200, 8, seconds)
    assert answers.step_s(8) == pytest.approx(before, rel=0.2)


def test_answers_that_are_all_alike_keep_being_learned():
    """Ten thousand equal answers leave the sums finite, and a change after them is still followed."""
    answers = WholeAnswers(prompt_token_s=TOKEN_S, step_s=STEP_S)
    for _ in range(10_000):
        answers.learn(1000, 100, 1, 2.0)
    assert 1000 * answers.prompt_token_s + 100 * answers.step_s(1) == pytest.approx(2.0, rel=0.01)
    for _ in range(2_000):
        answers.learn(1000, 100, 1, 4.0)
    assert 1000 * answers.prompt_token_s + 100 * answers.step_s(1) == pytest.approx(4.0, rel=0.02)


ANYTHING = st.one_of(st.floats(), st.floats(0, 1e12), st.integers(0, 4000))


@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), max_size=40))
def test_speeds_stay_finite_and_never_negative_whatever_is_learned(answers):
    """No sequence of answers makes a speed negative, infinite or NaN, nor the calibration that listens to them."""
    calibration = Calibration(prefill_tokens_per_s=4000.0, decode_step_s=0.030)
    for answer in answers:
        calibration.learn_whole_answer(*answer)
        assert 0 < calibration.prefill_s(1024) < math.inf
        assert 0 < calibration.decode_step_s(8) < math.inf
