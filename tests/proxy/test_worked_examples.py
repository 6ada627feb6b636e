"""Scores worked out by hand, to the last digit, and the same numbers on the debug page."""

import random

import pytest

from bus.in_transit import InTransit, Reserved
from proxy import debug
from proxy.candidates import RequestWork
from proxy.rotation import Rotation
from proxy.selection import Decision
from proxy.strategies.base import offers, rank, select
from proxy.strategies.expected_wait import ExpectedWait
from proxy.strategies.least_load import LeastLoad, LeastLoadWeights
from proxy.strategies.predicted_ttft import PredictedTTFT
from proxy.strategies.settings import CostSettings
from tests.proxy.candidates import full

WORK = RequestWork(prompt_tokens=1000, output_cap=100)

BUSY = full(
    "busy",
    transit=(512, 1),
    predicted_wait_ms=500,
    prefill_fixed_ms=10.0,
    prefill_tokens_per_s=5000.0,
    decode_step_ms=20.0,
    decode_slope_ms=0.5,
    mean_output_tokens=200,
    inflight=3,
    kv_usage=0.4,
    kv_capacity_tokens=51_200,
    queued_tokens=6000,
    active_decode_count=2,
    pending_prefill_count=1,
    predicted_total_backlog_ms=800,
)

# 1 / 5000 s a token at a prompt of 1 024, of which 10 ms are fixed: 0.0002 - 0.01 / 1024 s a token without them
TOKEN_S = 0.000190234375
PREFILL_S = 0.01 + 1000 * TOKEN_S  # 0.200234375
K = 0.4 + 512 / 51_200  # 0.41

EXAMPLES = {
    # 0.5 waits; 512 tokens and one fixed part in transit; own prefill; the barrier; 5 % of 100 steps of 20 ms and twice
    # 0.5 ms; 20 % of the prefill for each of four requests, twice more for the two without a first token, and of
    # 50 steps that last 0.5 ms more for each of the four
    "predicted_ttft": (
        PredictedTTFT(CostSettings()),
        {
            "wait_s": (0.5, 1.0),
            "in_transit_s": (0.1074, 1.0),
            "prefill_s": (PREFILL_S, 1.0),
            "kv_barrier_s": (0.15 * K / (1 - K), 1.0),
            "decode_s": (2.1, 0.05),
            "others_s": (8 * PREFILL_S + 4 * 50 * 0.0005, 0.2),
        },
        0.5 + 0.1074 + 0.200234375 + 0.15 * K / (1 - K) + 0.05 * 2.1 + 0.2 * 1.701875,
    ),
    # (6000 + 512) tokens at 5000 a second, and 0.15 * 0.4 / 0.6
    "expected_wait": (
        ExpectedWait(CostSettings()),
        {"queued_s": (1.2, 1.0), "in_transit_s": (0.1024, 1.0), "kv_barrier_s": (0.1, 1.0)},
        1.4024,
    ),
    # 3 + 1 in flight, 1 in prefill, 2 in decode, 800 ms
    "least_load": (
        LeastLoad(LeastLoadWeights()),
        {
            "inflight": (4, 1.0),
            "pending_prefill_count": (1, 1.0),
            "active_decode_count": (2, 0.5),
            "predicted_total_backlog_ms": (800, 0.001),
        },
        6.8,
    ),
}


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_a_score_is_what_was_worked_out_by_hand(name):
    """Each term, its weight and the total."""
    strategy, terms, total = EXAMPLES[name]
    evaluation = strategy.evaluate([BUSY], WORK, random.Random(1))
    shown = debug._terms(evaluation, 0)
    for term, (value, weight) in terms.items():
        assert shown[term]["value"] == pytest.approx(value, rel=1e-12)
        assert shown[term]["contribution"] == pytest.approx(value * weight, rel=1e-12)
    assert sum(term["contribution"] for term in shown.values()) == evaluation.totals[0]
    assert evaluation.totals[0] == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_slopes_are_how_the_score_really_grows(name):
    """One token or one request more in transit adds what the slope says (the barrier's is a derivative)."""
    strategy = EXAMPLES[name][0]

    def total(tokens: int, requests: int) -> float:
        signals = {f: getattr(BUSY.pressure.record, f) for f in BUSY.pressure.record.__struct_fields__[4:]}
        known = {signal: value for signal, value in signals.items() if value is not None}
        return strategy.evaluate([full("busy", transit=(tokens, requests), **known)], WORK, random.Random(1)).totals[0]

    slopes = strategy.evaluate([BUSY], WORK, random.Random(1)).slopes[0]
    assert total(513, 1) - total(512, 1) == pytest.approx(slopes.per_token, rel=1e-3, abs=1e-12)
    assert total(512, 2) - total(512, 1) == pytest.approx(slopes.per_request, rel=1e-9, abs=1e-12)


def test_the_debug_page_says_what_the_bus_made_of_a_choice():
    """Given a choice that the bus turned over, both scores of a candidate and what had been reserved are shown."""
    strategy = LeastLoad(LeastLoadWeights())
    candidates = [full("a"), full("b", inflight=1)]
    choice = select(strategy, candidates, WORK, random.Random(1), Rotation(0))
    assert [offer.score for offer in offers(choice, candidates)] == [0.0, 1.0]
    choice = type(choice)(
        choice.evaluation, choice.ranking, Reserved(1, [2.0, 1.0], [InTransit(200, 2), InTransit(0, 0)])
    )
    seen = [InTransit(), InTransit()]
    page = debug._decision(Decision("r1", 0.0, "default", "m", WORK, choice, seen, real_ttft_s=0.25))
    assert (page["chosen"], page["score"], page["runner_up"], page["margin"]) == ("b", 1.0, "a", 1.0)
    assert page["decided_by"] == "bus"
    assert page["real_ttft_s"] == 0.25
    first = page["candidates"][0]
    assert (first["id"], first["total"], first["score"]) == ("a", 0.0, 2.0)
    assert first["in_transit_when_chosen"] == InTransit(200, 2)


def test_ranking_keeps_more_than_is_offered_only_for_the_runner_up():
    """Of a thousand candidates the best seventeen are ranked, sixteen offered."""
    strategy = LeastLoad(LeastLoadWeights())
    candidates = [full(f"i{number:04}", inflight=1000 - number) for number in range(1000)]
    evaluation = strategy.evaluate(candidates, WORK, random.Random(1))
    ranking = rank(evaluation, Rotation(0))
    assert [evaluation.instances[index] for index in ranking[:2]] == ["i0999", "i0998"]
    assert len(ranking) == 17
