"""The engines' faults here and the simulated engine's table are the same, and few of them excuse anything."""

from deploy.engine.faults import FAULTS as KINDS
from tests.chaos.faults import FAULTS
from tests.chaos.faults import KINDS as ROWS
from tests.chaos.ledger import Deserts

BREAKING = {"refuse", "stop_undrained"} | {kind for kind in KINDS if kind.endswith("_mid_stream")}
UNTOLD = {"garbage_mid_stream", "cut_mid_stream"}


def test_every_way_in_which_an_engine_can_fail_is_a_fault_with_a_row():
    """None is left out, and none is a row of the short table by itself that belongs to another."""
    assert {name.removeprefix("engine: ") for name in FAULTS if name.startswith("engine: ")} == set(KINDS)
    assert ROWS["engine: stop_undrained"] == "engine stops without a drain"
    odd = {kind for kind in KINDS if ROWS[f"engine: {kind}"].startswith("engine begins or ends oddly")}
    assert odd == {
        *("late_headers", "late_abort", "unchecked", "no_done", "close_after_stream", "hang_pages"),
        *("slow_metrics", "metrics_404", "metrics_401", "metrics_garbage", "no_kv_gauge"),
    }


def test_only_what_ends_an_engine_or_its_answer_excuses_a_broken_stream():
    """Nothing else may break one, only a 422 may pass, and only the engine's own end may be untold."""
    for kind in KINDS:
        statuses = frozenset({422}) if kind == "detail_422" else frozenset()
        assert FAULTS[f"engine: {kind}"].deserts == Deserts(
            statuses, breaks_streams=kind in BREAKING, untold=kind in UNTOLD
        )
