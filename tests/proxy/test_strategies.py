"""How an instance is chosen: the cases of the layered score, the ladder, and what no numbers may do to a score."""

import math
from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.record import LARGEST
from proxy.candidates import Candidate, RequestWork
from proxy.rotation import Rotation
from proxy.strategies.base import Strategy, select
from proxy.strategies.expected_wait import ExpectedWait
from proxy.strategies.least_load import LeastLoad, LeastLoadWeights
from proxy.strategies.predicted_ttft import PredictedTTFT
from proxy.strategies.round_robin import RoundRobin
from proxy.strategies.settings import CostSettings
from tests.proxy.candidates import IDLE, full, known, silent

WORK = RequestWork(prompt_tokens=1000)
LEAST_LOAD = LeastLoad(LeastLoadWeights())
MEASURING: dict[str, Strategy] = {
    "least_load": LEAST_LOAD,
    "expected_wait": ExpectedWait(CostSettings()),
    "predicted_ttft": PredictedTTFT(CostSettings()),
}
ALL: dict[str, Strategy] = {**MEASURING, "round_robin": RoundRobin()}

IDLE_BUT_ANSWERS = {name: value for name, value in IDLE.items() if name != "mean_output_tokens"}

every = pytest.mark.parametrize("strategy", ALL.values(), ids=ALL)
measuring = pytest.mark.parametrize("strategy", MEASURING.values(), ids=MEASURING)


def shares(strategy: Strategy, candidates: list[Candidate], choices: int = 40) -> Counter[str]:
    """How often each is chosen."""
    rng, rotation = Random(5), Rotation(offset=3)
    return Counter(select(strategy, candidates, WORK, rng, rotation).instance for _ in range(choices))


# -- the seven cases


def test_lower_in_flight_wins_when_all_else_is_equal():
    """Always, whoever's turn it is."""
    assert shares(LEAST_LOAD, [full("a", inflight=3), full("b", inflight=2)]) == {"b": 40}


def test_higher_pending_prefill_loses():
    """All else is equal."""
    assert shares(LEAST_LOAD, [full("a", pending_prefill_count=1), full("b")]) == {"b": 40}


def test_higher_predicted_backlog_loses_though_all_depths_are_zero():
    """What the queues do not show the timeline knows."""
    assert shares(LEAST_LOAD, [full("a", predicted_total_backlog_ms=50), full("b")]) == {"b": 40}


def test_without_predicted_fields_the_instantaneous_score_decides():
    """Nobody predicts: the depths are compared, and what is not known is left out for both."""
    candidates = [known("a", inflight=1, ready_queue_depth=2), known("b", inflight=1, ready_queue_depth=1)]
    assert shares(LEAST_LOAD, candidates) == {"b": 40}
    evaluation = LEAST_LOAD.evaluate(candidates, WORK, Random(1))
    assert tuple(evaluation.terms) == ("inflight", "ready_queue_depth")
    assert evaluation.tier == "measured"


def test_without_any_queue_signal_in_flight_decides():
    """First what workers say of it; where no record says anything this replica's own counts."""
    assert shares(LEAST_LOAD, [known("a", inflight=2), known("b", inflight=1)]) == {"b": 40}
    candidates = [silent("a", own=2), silent("b", own=1)]
    assert shares(LEAST_LOAD, candidates) == {"b": 40}
    assert LEAST_LOAD.evaluate(candidates, WORK, Random(1)).tier == "in_flight"


@every
def test_with_nothing_known_everybody_has_their_turn(strategy):
    """Round robin."""
    candidates = [silent(name, own=None) for name in "abcd"]
    assert shares(strategy, candidates) == dict.fromkeys("abcd", 10)
    assert strategy.evaluate(candidates, WORK, Random(1)).tier == "round_robin"


@every
def test_ties_have_their_turn(strategy):
    """Equal instances share equally, and one that is worse gets nothing from a strategy that measures."""
    assert shares(strategy, [full(name) for name in "abcd"]) == dict.fromkeys("abcd", 10)
    worse = full("z", inflight=9, queued_tokens=9000, predicted_wait_ms=900, predicted_total_backlog_ms=900)
    got = shares(strategy, [full("a"), full("b"), worse], choices=30)
    assert got["z"] == (10 if strategy.name == "round_robin" else 0)


def test_the_worked_example_of_the_layered_score():
    """3 in flight, of them 2 decoding and 1 in prefill, and 800 ms of backlog: 5.8."""
    one = full("a", inflight=3, active_decode_count=2, pending_prefill_count=1, predicted_total_backlog_ms=800)
    evaluation = LEAST_LOAD.evaluate([one], WORK, Random(1))
    assert evaluation.totals == [pytest.approx(5.8)]
    assert sum(evaluation.contributions(0)) == pytest.approx(5.8)


def test_a_weight_of_zero_leaves_a_signal_out():
    """By default the rate of requests is."""
    assert shares(LEAST_LOAD, [full("a", qps_1m=99.0), full("b")]) == {"a": 20, "b": 20}
    only_rate = LeastLoad(LeastLoadWeights(**{**dict.fromkeys(LeastLoadWeights.__struct_fields__, 0.0), "qps_1m": 1.0}))
    assert shares(only_rate, [full("a", qps_1m=99.0), full("b", inflight=50)]) == {"b": 40}


def test_the_worked_example_of_expected_wait():
    """6 000 tokens wait, 2 000 are in transit, 4 000 tokens/s, cache half full: 2.15 s."""
    one = full("a", queued_tokens=6000, kv_usage=0.5, transit=(2000, 1))
    assert MEASURING["expected_wait"].evaluate([one], WORK, Random(1)).totals == [pytest.approx(2.15)]


@measuring
def test_what_is_in_transit_counts(strategy):
    """Another replica's choices that no record shows yet."""
    assert shares(strategy, [full("a", transit=(4000, 3)), full("b")]) == {"b": 40}


def test_how_long_answers_are_is_no_matter_of_an_instance():
    """One that had three long ones by chance is chosen as its equals are; by its own mean it never was again."""
    candidates = [full("a"), full("b"), full("c", mean_output_tokens=4000.0), known("d", **IDLE_BUT_ANSWERS)]
    assert shares(MEASURING["predicted_ttft"], candidates) == dict.fromkeys("abcd", 10)


# -- the ladder

HALVES = {
    "no counts": lambda name: not name.endswith(("count", "depth")) and name not in {"inflight", "queued_tokens"},
    "no predictions": lambda name: not name.startswith(("predicted", "next", "prefill_free")),
    "only in flight": lambda name: name == "inflight",
    "nothing": lambda _: False,
}


def load_of(requests: int) -> dict[str, float]:
    """What an instance with so many requests says."""
    return {
        **IDLE,
        "inflight": requests,
        "ready_queue_depth": max(0, requests - 4),
        "pending_prefill_count": min(requests, 1),
        "active_decode_count": max(0, min(requests, 4) - 1),
        "predicted_total_backlog_ms": requests * 60,
        "predicted_wait_ms": requests * 60,
        "queued_tokens": requests * 300,
        "kv_usage": min(requests / 20, 1.0),
    }


@measuring
@pytest.mark.parametrize("keeps", HALVES.values(), ids=HALVES)
def test_a_half_measured_instance_that_is_equal_gets_at_least_half_and_at_most_twice_its_share(strategy, keeps):
    """One of eight equal queues at 80 % load says only half, or nothing: over 2 000 choices it has its share."""
    rng, rotation, chosen = Random(11), Rotation(offset=1), Counter()
    requests = dict.fromkeys([*"abcdefg", "half"], 0)
    for _ in range(2000):
        candidates = [full(name, **load_of(requests[name])) for name in "abcdefg"]
        seen = {name: value for name, value in load_of(requests["half"]).items() if keeps(name)}
        candidates.append(known("half", **seen) if seen else silent("half"))
        instance = select(strategy, candidates, WORK, rng, rotation).instance
        chosen[instance] += 1
        requests[instance] += 1
        for name in requests:
            if requests[name] and rng.random() < 1 / 8 / 0.8:
                requests[name] -= 1
    assert 2000 / 8 / 2 <= chosen["half"] <= 2000 / 8 * 2


def test_a_half_measured_instance_that_is_known_to_be_worse_does_not_win():
    """What it does say stays: with 50 in flight it is not chosen for its silence about the rest."""
    candidates = [full("a", inflight=1), full("b", inflight=1), known("half", inflight=50)]
    assert shares(LEAST_LOAD, candidates)["half"] == 0


def test_depths_of_which_some_are_unknown_are_no_number_of_waiting_tokens():
    """An instance that says only that nothing waits to be prepared has not said that nothing waits."""
    candidates = [full("a", queued_tokens=5000), full("b", queued_tokens=5000), known("half", prepare_queue_depth=0)]
    evaluation = MEASURING["expected_wait"].evaluate(candidates, WORK, Random(1))
    assert evaluation.imputed[2]["queued_tokens"] in {"a", "b"}


def test_what_is_imputed_is_marked_with_its_donor():
    """And only values that a peer reported itself are given on."""
    candidates = [full("a", inflight=4), known("half", inflight=1), silent("mute")]
    for seed in range(20):
        evaluation = LEAST_LOAD.evaluate(candidates, WORK, Random(seed))
        assert set(evaluation.imputed[1].values()) == {"a"}
        assert "inflight" not in evaluation.imputed[1]
        assert set(evaluation.imputed[2].values()) <= {"a", "half"}
        assert set(evaluation.imputed[2]) == set(evaluation.terms)
        for signal in set(evaluation.terms) - {"inflight"}:
            assert evaluation.imputed[2][signal] == "a"
        assert evaluation.source(1, "inflight") == "record"
        assert evaluation.source(2, "inflight") == "imputed"


def test_predicted_durations_are_aged():
    """800 ms published 300 ms ago are 500 ms; and never less than a heartbeat takes off."""
    fresh = LEAST_LOAD.evaluate([known("a", predicted_total_backlog_ms=800, age_ms=300)], WORK, Random(1))
    assert fresh.values == [[500]]
    stale = LEAST_LOAD.evaluate([known("a", predicted_total_backlog_ms=800, age_ms=1400)], WORK, Random(1))
    assert stale.values == [[300]]


# -- whatever the numbers are

COUNT = st.integers(0, 100) | st.integers(0, LARGEST)
AMOUNT = st.floats(0, 1e4) | st.floats(0, float(LARGEST))
SIGNALS = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(0, 1) if name == "kv_usage" else AMOUNT if isinstance(value, float) else COUNT
        for name, value in IDLE.items()
    },
)
CANDIDATES = st.lists(
    st.tuples(SIGNALS, st.none() | st.integers(0, 50), st.tuples(COUNT, st.integers(0, 1000))), min_size=1, max_size=6
)
WORKS = st.builds(RequestWork, prompt_tokens=st.integers(1, 10**12), output_cap=st.none() | st.integers(0, LARGEST))


@every
@given(rows=CANDIDATES, work=WORKS, seed=st.integers(0, 5))
def test_scores_are_finite_whatever_records_say(strategy, rows, work, seed):
    """Every believable number, every gap: totals and slopes are finite and not negative, and somebody is chosen."""
    candidates = [
        known(f"i{index}", own=own, transit=transit, **signals) for index, (signals, own, transit) in enumerate(rows)
    ]
    choice = select(strategy, candidates, work, Random(seed), Rotation(offset=seed))
    evaluation = choice.evaluation
    assert all(0 <= total < math.inf for total in evaluation.totals)
    for slopes in evaluation.slopes or ():
        assert 0 <= slopes.per_token < math.inf
        assert 0 <= slopes.per_request < math.inf
    for index, total in enumerate(evaluation.totals):
        assert sum(evaluation.contributions(index)) == pytest.approx(total)
    assert evaluation.totals[choice.index] == min(evaluation.totals)
    assert choice.margin is None or choice.margin >= 0


MODEST = st.integers(0, 1000)
FULL = st.fixed_dictionaries(
    {
        name: st.floats(0, 0.9) if name == "kv_usage" else MODEST
        for name in (*LeastLoadWeights.__struct_fields__, "queued_tokens", "predicted_wait_ms", "kv_usage")
        if name != "qps_1m"
    }
)
GROWING = {
    "least_load": tuple(name for name in LeastLoadWeights.__struct_fields__ if name != "qps_1m"),
    "expected_wait": ("queued_tokens", "kv_usage"),
    "predicted_ttft": ("predicted_wait_ms", "inflight", "kv_usage", "decode_step_ms", "decode_slope_ms"),
}


@measuring
@given(load=FULL, data=st.data())
def test_more_of_any_signal_is_never_better(strategy, load, data):
    """One signal of one instance grows: its total does not fall, and nobody else's changes."""
    signal = data.draw(st.sampled_from(GROWING[strategy.name]))
    more = 0.05 if signal == "kv_usage" else data.draw(st.integers(1, 100))
    before = {**IDLE, **load}
    after = {**before, signal: before[signal] + more}
    first = strategy.evaluate([full("a", **before), full("b", **load)], WORK, Random(1))
    then = strategy.evaluate([full("a", **after), full("b", **load)], WORK, Random(1))
    assert then.totals[0] > first.totals[0]
    assert then.totals[1] == first.totals[1]


@given(load=FULL, speed=st.floats(1, 1e5))
def test_a_faster_engine_is_never_worse(load, speed):
    """Twice the speed, all else equal."""
    for name in ("expected_wait", "predicted_ttft"):
        strategy = MEASURING[name]
        slow = strategy.evaluate([full("a", **load, prefill_tokens_per_s=speed)], WORK, Random(1))
        fast = strategy.evaluate([full("a", **load, prefill_tokens_per_s=2 * speed)], WORK, Random(1))
        assert fast.totals[0] <= slow.totals[0]


@every
@given(loads=st.lists(FULL, min_size=2, max_size=6), data=st.data())
def test_the_order_of_candidates_does_not_matter(strategy, loads, data):
    """Where all is known each has the same total in any order, and the same one is chosen."""
    candidates = [full(f"i{index}", **load) for index, load in enumerate(loads)]
    shuffled = data.draw(st.permutations(candidates))
    one = select(strategy, candidates, WORK, Random(1), Rotation(offset=2))
    other = select(strategy, shuffled, WORK, Random(1), Rotation(offset=2))
    totals = [dict(zip(c.evaluation.instances, c.evaluation.totals, strict=True)) for c in (one, other)]
    assert totals[0] == totals[1]
    assert one.instance == other.instance


def test_an_evaluation_can_be_shown():
    """It is plain data: numbers and names."""
    choice = select(LEAST_LOAD, [full("a"), silent("b")], WORK, Random(1), Rotation(offset=0))
    assert msgspec.json.decode(msgspec.json.encode(choice.evaluation))["strategy"] == "least_load"
