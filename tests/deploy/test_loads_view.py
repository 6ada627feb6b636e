import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deploy.loads import InstanceLoad, Loads, decode
from deploy.loads_view import bar, plain_line, render

DEPTHS = ("prepare_queue_depth", "ready_queue_depth", "active_prepare", "active_ready")


def signal(value, source="record"):
    """One signal as the debug endpoint writes it."""
    return {"value": value, "source": source, "age_ms": 10.0, "weight": 1.0, "contribution": value}


def instance(name, *, pool="default", state="ready", total=1.5, selected=0, reason=None, **signals):
    """One instance as the debug endpoint writes it."""
    return {
        "pool": pool,
        "id": name,
        "state": state,
        "models": ["tiny"],
        "worker_url": "http://127.0.0.1:1",
        "age_ms": 12.0,
        "reason": reason,
        "signals": {key: value if isinstance(value, dict) else signal(value) for key, value in signals.items()},
        "total": total,
        "selected": selected,
    }


def loads(*instances, tier="measured", bus="fresh"):
    """A whole answer of the debug endpoint."""
    pools = {"default": {"tier": tier, "bus": {"state": bus, "age_ms": 3.0}}}
    return {"replica": "127.0.0.1:8000", "strategy": "least_load", "pools": pools, "instances": list(instances)}


def text_of(renderable, width=200) -> str:
    """What a terminal would show, without colour."""
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(renderable)
    return out.getvalue()


def row_of(text: str, name: str) -> list[str]:
    """The words of one instance's row."""
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return line.split()


def test_known_numbers_are_shown():
    """Every number an engineer asks for at night is in the row of its instance."""
    depths = dict.fromkeys(DEPTHS, 2)
    view = render(loads(instance("e1", inflight=7, predicted_total_backlog_ms=2500, kv_usage=0.42, **depths)))
    row = row_of(text_of(view), "e1")
    assert row[:7] == ["e1", "ready", "12", "ms", "7", "2+2", "2+2"]
    assert "2.5 s" in " ".join(row)
    assert {"42%", "1.50"} <= set(row)


def test_unknown_is_a_dash_and_never_zero():
    """An instance nobody has heard of shows dashes only: no 0 that would read as idle."""
    text = text_of(render(loads(instance("e1", state="unknown", total=None, inflight=None, kv_usage=None))))
    cells = row_of(text, "e1")[2:]
    assert "–" in cells
    assert "0" not in "".join(cells).replace("12", "")


def test_measured_zero_is_a_zero():
    """A zero that was measured is shown as one."""
    assert row_of(text_of(render(loads(instance("e1", inflight=0)))), "e1")[4] == "0"


def test_imputed_numbers_are_marked():
    """What was taken from another instance is marked, in the table and on the line."""
    answer = loads(instance("e1", inflight=signal(4.0, "imputed"), kv_usage=signal(0.5, "imputed")))
    assert row_of(text_of(render(answer)), "e1")[4] == "~4"
    assert "in flight ~4" in plain_line(answer)
    assert "kv ~50%" in plain_line(answer)


def test_what_a_choice_is_made_with_is_shown_where_the_record_is_silent():
    """A replica writes a foreign value, or its own count, beside the unknown one: both show, the foreign marked."""
    silent = {"value": None, "used": 4.0, "source": "imputed", "imputed_from": "e2"}
    counted = {"value": None, "used": 3.0, "source": "own"}
    assert row_of(text_of(render(loads(instance("e1", inflight=silent)))), "e1")[4] == "~4"
    assert row_of(text_of(render(loads(instance("e1", inflight=counted)))), "e1")[4] == "3"


def test_ejected_instance_and_damaged_signals_are_named():
    """An instance out of rotation is not called ready, and signals that cannot be true are listed."""
    answer = loads(instance("e1") | {"is_ejected": True, "unbelievable": ["kv_usage"]})
    text = text_of(render(answer))
    assert row_of(text, "e1 ")[1] == "ejected"
    assert "e1: cannot be true: kv_usage" in text
    assert "e1 ejected" in plain_line(answer)


def test_what_is_held_against_an_instance_is_said():
    """A full instance is called full, and why less is sent to one stands below the table."""
    full = instance("e1") | {"is_full": True}
    returning = instance("e2") | {"held_against": "let back slowly: 1 of at most 2 under way"}
    text = text_of(render(loads(full, returning)))
    assert row_of(text, "e1 ")[1] == "full"
    assert row_of(text, "e2 ")[1] == "ready"
    assert "e2: let back slowly: 1 of at most 2 under way" in text


def test_reservations_are_shown():
    """What is in transit to an instance has a column; where nobody says, it is unknown."""
    text = text_of(render(loads(instance("e1") | {"in_transit_requests": 3}, instance("e2"))))
    assert row_of(text, "e1 ")[-3:-1] == ["3", "1.50"]
    assert row_of(text, "e2 ")[-3:-1] == ["–", "1.50"]


def test_a_score_made_with_values_of_another_instance_is_marked():
    """A silent instance's score is no measurement of it."""
    silent = {"value": None, "used": 900.0, "source": "imputed"}
    text = text_of(render(loads(instance("e1", state="unknown", predicted_wait_ms=silent))))
    assert row_of(text, "e1 ")[-2] == "~1.50"


def test_pool_without_candidates_has_no_tier():
    """With nothing to choose from the tier is unknown."""
    answer = loads(tier=None)
    assert "choosing by –" in text_of(render(answer))
    assert "default: –" in plain_line(answer)


def test_shares_are_of_what_happened_since_the_last_look():
    """With a previous look the share is of the choices between the two; without, of all."""
    before = loads(instance("e1", selected=100), instance("e2", selected=0))
    now = loads(instance("e1", selected=101), instance("e2", selected=3))
    assert row_of(text_of(render(now, before)), "e2")[-1] == "75%"
    assert row_of(text_of(render(now)), "e2")[-1] == "3%"


def test_restarted_replica_counts_anew():
    """Counts that fell are a restart: the share is of the new counts, never negative."""
    before = loads(instance("e1", selected=100), instance("e2", selected=50))
    now = loads(instance("e1", selected=1), instance("e2", selected=1))
    assert row_of(text_of(render(now, before)), "e1")[-1] == "50%"


def test_shares_are_within_a_pool():
    """Pools do not compete: each adds up to the whole."""
    now = loads(instance("e1", selected=5), instance("e2", pool="other", selected=1))
    text = text_of(render(now))
    assert [line.split()[-1] for line in text.splitlines() if " e1 " in line or " e2 " in line] == ["100%", "100%"]


def test_no_choice_yet_is_no_share():
    """Before the first choice a share is unknown."""
    assert row_of(text_of(render(loads(instance("e1")))), "e1")[-1] == "–"


def test_heading_names_tier_and_bus():
    """How choices are made now, and whether the bus is seen, stands above the table and on the line."""
    answer = loads(instance("e1"), tier="in_flight", bus="blind")
    assert "choosing by in_flight  bus blind" in text_of(render(answer))
    assert "default: in_flight, bus blind" in plain_line(answer)


def test_names_with_brackets_are_only_names():
    """An id or a reason that looks like markup is shown as it is."""
    answer = loads(instance("[red]e1", reason="record of [/] version 9"))
    text = text_of(render(answer))
    assert row_of(text, "[red]e1 ")[1] == "ready"
    assert "[red]e1: record of [/] version 9" in text


def test_plain_line_is_one_bounded_line():
    """Of a large fleet the line shows eight instances and how many more there are."""
    line = plain_line(loads(*[instance(f"e{number:02}") for number in range(30)]))
    assert "\n" not in line
    assert "e07 " in line
    assert "e08 " not in line
    assert line.endswith("and 22 more")


def test_struct_and_dictionary_look_alike():
    """Decoded or as a dictionary, an answer gives the same view."""
    body = b'{"replica":"r","strategy":"s","pools":{},"instances":[{"pool":"p","id":"e1"}],"added_later":1}'
    assert decode(body) == Loads("r", "s", {}, (InstanceLoad("p", "e1"),))
    assert plain_line(decode(body)) == plain_line(
        {"replica": "r", "strategy": "s", "instances": [{"pool": "p", "id": "e1"}]}
    )


def test_empty_fleet_is_shown():
    """A replica that knows no instance still has a view."""
    assert "least_load" in text_of(render(loads()))
    assert plain_line(loads())


def test_table_fits_a_usual_terminal():
    """At 120 columns no number of a usual instance is cut."""
    depths = dict.fromkeys(DEPTHS, 12)
    busy = instance("engine-1", inflight=48, predicted_total_backlog_ms=12500, kv_usage=1.0, total=123.25, **depths)
    text = text_of(render(loads(busy)), width=120)
    assert "…" not in text
    assert {"48", "12+12", "100%", "123.25"} <= set(row_of(text, "engine-1"))


@pytest.mark.parametrize("value", [0.001, 0.0])
def test_bar_shows_anything_above_nothing(value):
    """A short backlog is visible; none is empty."""
    assert bool(bar(value, 1000.0).strip()) is (value > 0)


@given(value=st.floats(0, 1e12), full=st.floats(1, 1e12))
def test_bar_has_always_its_width(value, full):
    """Whatever the numbers, a bar is ten cells."""
    assert len(bar(value, full)) == 10
