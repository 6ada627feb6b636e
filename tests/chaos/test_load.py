from itertools import pairwise

import pytest

from deploy.engine.batching import EngineModel
from tests.chaos.load import OUTPUT_TOKENS, PROMPT_TOKENS, rate_per_s, trace


def test_every_part_of_the_load_is_as_heavy_as_the_whole_in_time():
    """Wherever a seed begins, any hundred requests take about a hundred seconds, with bursts between them."""
    for first in (0, 1234):
        rows = trace(first)
        assert len(rows) == 2000
        assert rows[-1].at_s == pytest.approx(2000)
        assert all(rows[n + 99].at_s - rows[n].at_s == pytest.approx(100, abs=25) for n in range(0, 2000, 100))
        assert min(after.at_s - before.at_s for before, after in pairwise(rows)) < 0.2
    assert {row.prompt_tokens for row in trace(0)} == {row.prompt_tokens for row in trace(1234)}
    assert max(row.prompt_tokens for row in rows) == PROMPT_TOKENS
    assert max(row.output_tokens for row in rows) == OUTPUT_TOKENS


def test_a_share_of_capacity_follows_the_engines():
    """Twice the engines, or engines twice as fast, take twice as much."""
    one = rate_per_s(0.5, [EngineModel()])
    assert rate_per_s(0.5, [EngineModel()] * 2) == pytest.approx(2 * one)
    assert rate_per_s(0.5, [EngineModel(speed=2.0)]) == pytest.approx(2 * one)
    assert rate_per_s(1.0, [EngineModel()]) == pytest.approx(2 * one)
