"""Full by the record: the very rule of the worker, with what is in transit there; and when to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.record import PressureRecord
from bus.registration import Registration
from bus.view import Pressure
from proxy.admission import SHORT_WAIT_MS, UNKNOWN_WAIT_S, has_free_slot, is_full, long_enough, retry_after_s
from proxy.candidates import RequestWork


def pressure(
    *,
    slots=2,
    limit=1,
    running=0,
    waiting=0,
    in_transit=0,
    slot_ms=None,
    wait_ms=None,
    is_known=True,
    context=None,
) -> Pressure:
    """Give an instance with so many on its engine and so many waiting."""
    registration = Registration(
        worker_url="http://w", engine_url="http://e", slots=slots, queue_limit=limit, context_tokens=context
    )
    record = PressureRecord(
        epoch=1,
        sequence=1,
        inflight=running + waiting,
        prepare_queue_depth=0,
        active_prepare=0,
        ready_queue_depth=waiting,
        next_slot_ready_in_ms=slot_ms,
        predicted_wait_ms=wait_ms,
    )
    return Pressure("a", registration, record if is_known else None, 0.0, None, (), in_transit, in_transit)


@pytest.mark.parametrize(
    ("numbers", "full"),
    [
        ({"running": 2}, False),
        ({"running": 2, "waiting": 1}, True),
        ({"running": 2, "waiting": 0, "in_transit": 1}, True),
        ({"running": 1, "in_transit": 1}, False),
        ({"running": 1, "in_transit": 2}, True),
        ({"running": 10, "slots": 16, "limit": 2, "in_transit": 6}, False),
        ({"running": 1, "limit": 0}, False),
        ({"running": 2, "limit": 0}, True),
        ({"running": 2, "waiting": 5, "limit": None}, False),
        ({"running": 2, "waiting": 5, "is_known": False}, False),
    ],
)
def test_full_is_what_the_worker_would_refuse(numbers, full):
    """What is in transit takes free slots first; unknown is not full."""
    assert is_full(pressure(**numbers)) is full


@pytest.mark.parametrize(
    ("numbers", "own", "is_free"),
    [
        ({"running": 1}, 0, True),
        ({"running": 1, "in_transit": 1}, 0, False),
        ({"running": 2}, 0, False),
        ({"running": 1, "wait_ms": SHORT_WAIT_MS}, 0, True),
        ({"running": 1, "wait_ms": SHORT_WAIT_MS + 1}, 0, False),
        ({"is_known": False}, 1, True),
        ({"is_known": False}, 2, False),
    ],
)
def test_a_free_slot_is_one_in_which_a_request_begins_soon(numbers, own, is_free):
    """Of two: what is in transit takes one, a long line of prompts none; unknown is what this replica has there."""
    assert has_free_slot(pressure(**numbers), own) is is_free


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 30))
def test_a_fleet_is_full_just_after_its_last_place(slots, limit, accepted):
    """As many as slots and places are taken, not one more, whether they have arrived or are in transit."""
    running, waiting = min(accepted, slots), max(0, accepted - slots)
    assert is_full(pressure(slots=slots, limit=limit, running=running, waiting=waiting)) is (accepted >= slots + limit)
    assert is_full(pressure(slots=slots, limit=limit, in_transit=accepted)) is (accepted >= slots + limit)


def test_the_soonest_place_in_the_fleet_is_when_to_come_again():
    """Eight wait and a ninth would have a slot in 18 s: a place is free every 2 s; the other has one in 3 s."""
    slow, fast = pressure(running=2, waiting=8, slot_ms=18_000), pressure(running=2, waiting=0, slot_ms=3_000)
    assert retry_after_s([fast, slow]) == 2.0
    assert retry_after_s([fast]) == 3.0
    assert retry_after_s([fast, pressure(is_known=False)]) == 3.0
    assert retry_after_s([pressure()]) == retry_after_s([]) == UNKNOWN_WAIT_S


@pytest.mark.parametrize(
    ("prompt_tokens", "cap", "is_exact", "fits"),
    [
        (8192, None, True, {"short", "long", "untold"}),
        (8193, None, True, {"long", "untold"}),
        (8000, 193, True, {"long", "untold"}),
        (8193, None, False, {"short", "long", "untold"}),
        (8000, 2500, False, {"long", "untold"}),
        (12_000, None, False, {"long", "untold"}),
        (200_000, None, True, {"untold"}),
    ],
)
def test_who_is_too_short_for_a_request_is_left_out(prompt_tokens, cap, is_exact, fits):
    """Prompt and answer together; where the prompt is only estimated, who is clearly too short."""
    fleet = {"short": pressure(context=8192), "long": pressure(context=131_072), "untold": pressure()}
    work = RequestWork(prompt_tokens=prompt_tokens, output_cap=cap)
    found = long_enough(list(fleet.values()), work, is_exact=is_exact)
    assert {name for name, each in fleet.items() if any(each is one for one in found)} == fits


def test_where_all_are_too_short_the_engine_says_so():
    """Its own words tell the client what is allowed."""
    found = [pressure(context=100), pressure(context=200)]
    assert long_enough(found, RequestWork(prompt_tokens=1000), is_exact=True) == found
