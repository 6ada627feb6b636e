"""What is held against an instance: pauses with backoff, the way back one request at a time, and never a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ejection import (
    FIRST_PAUSE_S,
    LONGEST_BETWEEN_PROBES_S,
    LONGEST_PAUSE_S,
    LONGEST_REST_S,
    NEW_HERE_S,
    UNLIMITED,
    Ejections,
    Standing,
)


def sent(ejections: Ejections, instance: str) -> Standing | None:
    """Send a request to an instance."""
    return ejections.claim(instance)


def succeeded(ejections: Ejections, instance: str, *, is_whole: bool = True) -> None:
    """Send a request to an instance, which answers it."""
    standing = sent(ejections, instance)
    ejections.succeeded(instance, standing, is_whole=is_whole)
    if standing is not None:
        standing.ended()


def pause_s(ejections: Ejections, now: float) -> float:
    """Give how long an instance is still out."""
    passed_s = 0.0
    while ejections.is_out("a", now + passed_s):
        passed_s += 0.25
    return passed_s


def test_a_pause_doubles_up_to_its_limit_and_a_success_ends_it():
    """Half a second, one, two … ten; then the first pause again."""
    ejections, now, pauses = Ejections(), 0.0, []
    for _ in range(8):
        ejections.failed("a", now)
        pauses.append(pause_s(ejections, now))
        now += pauses[-1]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    succeeded(ejections, "a")
    assert not ejections.is_out("a", now)
    ejections.failed("a", now)
    assert not ejections.is_out("a", now + FIRST_PAUSE_S)


def test_a_stream_that_only_begins_does_not_undo_a_pause():
    """Who breaks each stream after its first event is out for longer each time; one that ends well is trusted again."""
    ejections, now, pauses = Ejections(), 0.0, []
    for _ in range(3):
        ejections.failed("a", now)
        pauses.append(pause_s(ejections, now))
        now += pauses[-1]
        succeeded(ejections, "a", is_whole=False)
        assert not ejections.is_out("a", now)
    succeeded(ejections, "a")
    ejections.failed("a", now)
    assert [*pauses, pause_s(ejections, now)] == [0.5, 1.0, 2.0, 0.5]


def test_an_answer_to_what_was_sent_before_a_failure_undoes_nothing():
    """An engine that hangs may have answered the request before; whoever was sent after the failure is the proof."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    before = sent(ejections, "a")
    ejections.failed("a", FIRST_PAUSE_S)
    ejections.succeeded("a", before)
    ejections.succeeded("a", None)
    assert ejections.is_out("a", FIRST_PAUSE_S + 0.1)
    succeeded(ejections, "a")
    assert not ejections.is_out("a", FIRST_PAUSE_S + 0.1)


def test_a_failure_within_a_pause_does_not_lengthen_it_and_counts_all_the_same():
    """Where all are out they are tried: an answer to what was sent before the last failure lets nobody back."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    before = sent(ejections, "a")
    ejections.failed("a", 0.2, needs_health=True)
    ejections.succeeded("a", before)
    assert ejections.needs_health("a")
    ejections.probed("a", True, 0.3)
    assert ejections.is_out("a", 0.4)
    assert not ejections.is_out("a", FIRST_PAUSE_S)


def test_a_way_back_of_streams_that_only_begin_keeps_the_pause():
    """However many have begun: the limit is gone, what it did before is not."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    for _ in range(20):
        succeeded(ejections, "a", is_whole=False)
    ejections.failed("a", 60.0)
    assert pause_s(ejections, 60.0) == 2 * FIRST_PAUSE_S


def test_failures_that_were_under_way_do_not_lengthen_a_pause():
    """Fifty requests that fail in the same instant are one failure."""
    ejections = Ejections()
    for index in range(50):
        ejections.failed("a", index * 0.001)
    assert not ejections.is_out("a", FIRST_PAUSE_S)


def test_when_all_are_out_all_are_tried():
    """Trying beats refusing."""
    ejections = Ejections()
    for name in "ab":
        ejections.failed(name, 0.0)
    assert ejections.usable("ab", 0.1) == ["a", "b"]
    assert ejections.usable("abc", 0.1) == ["c"]


def test_after_a_pause_one_request_at_a_time_is_the_probe():
    """One, then with each success two, four, … until there is no limit."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    now, allowed = FIRST_PAUSE_S, 1
    while allowed <= UNLIMITED:
        under_way = []
        while ejections.with_room("ab", now) == ["a", "b"]:
            under_way.append(sent(ejections, "a"))
        assert len(under_way) == allowed
        for standing in under_way:
            standing.ended()
        succeeded(ejections, "a")
        allowed *= 2
    assert sent(ejections, "a") is None


def test_a_limit_holds_only_while_another_has_room():
    """Nobody is refused since all are new."""
    ejections = Ejections()
    ejections.meet(["old"], 0.0)
    ejections.meet(["old", "a", "b"], NEW_HERE_S)
    sent(ejections, "a")
    assert ejections.with_room(["a", "b"], 0.0) == ["b"]
    sent(ejections, "b")
    assert ejections.with_room(["a", "b"], 0.0) == ["a", "b"]
    assert ejections.with_room(["a", "b", "old"], 0.0) == ["old"]


def test_where_nobody_else_has_a_free_slot_who_is_new_has_no_limit_and_who_comes_back_twice_its_own():
    """No request waits behind a queue so that an idle instance stays idle; a half-healed one is still not flooded."""
    ejections = Ejections()
    ejections.meet(["old"], 0.0)
    ejections.meet(["old", "new", "back"], NEW_HERE_S)
    ejections.failed("back", NEW_HERE_S)
    now = NEW_HERE_S + FIRST_PAUSE_S
    for _ in range(5):
        sent(ejections, "new")
    sent(ejections, "back")
    every = ["old", "new", "back"]
    assert ejections.with_room(every, now) == ["old"]
    assert ejections.with_room(every, now, is_pressed=True) == every
    sent(ejections, "back")
    assert ejections.with_room(every, now, is_pressed=True) == ["old", "new"]
    assert [ejections.is_limited(name, is_pressed=True) for name in every] == [False, False, True]
    ejections.failed("new", now)
    assert ejections.is_limited("new", is_pressed=True), "who has failed is new no longer"


def test_long_streams_from_before_a_failure_do_not_keep_an_instance_out():
    """They are under way still, but not under the standing that is on trial."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    before = [sent(ejections, "a") for _ in range(20)]
    ejections.failed("a", FIRST_PAUSE_S)
    assert ejections.with_room("ab", FIRST_PAUSE_S + 2 * FIRST_PAUSE_S) == ["a", "b"]
    sent(ejections, "a")
    assert ejections.with_room("ab", 10.0) == ["b"]
    for standing in before:
        standing.ended()
    assert ejections.with_room("ab", 10.0) == ["b"], "the end of an old stream freed the place of the trial"


def test_who_is_new_is_ramped_up_but_not_by_a_replica_that_is_new_itself():
    """A replica that starts finds a fleet that runs."""
    ejections = Ejections()
    ejections.meet("a", 0.0)
    ejections.meet("ab", 1.0)
    assert sent(ejections, "b") is None
    assert sent(ejections, "a") is None
    ejections.meet("abc", NEW_HERE_S)
    assert sent(ejections, "c") is not None
    ejections.forget_all_but("ac", NEW_HERE_S)
    ejections.meet("abc", NEW_HERE_S)
    assert sent(ejections, "b") is not None, "who returns is new"
    assert sent(ejections, "a") is None


def test_a_dead_worker_is_let_back_by_its_health_alone():
    """Asked after each pause, which grows to two seconds; alive it gets one request."""
    ejections, now, asked_after = Ejections(), 0.0, []
    ejections.failed("a", now, needs_health=True)
    for _ in range(4):
        passed_s = 0.0
        while not ejections.due(now + passed_s):
            passed_s += 0.25
        asked_after.append(passed_s)
        now += passed_s
        assert ejections.is_out("a", now)
        ejections.probed("a", False, now)
    assert asked_after == [0.5, 1.0, 2.0, LONGEST_BETWEEN_PROBES_S]
    ejections.probed("a", True, now + LONGEST_BETWEEN_PROBES_S)
    assert not ejections.is_out("a", now + LONGEST_BETWEEN_PROBES_S)
    assert ejections.due(now + 100) == []


def test_a_probe_lets_nobody_back_whose_engine_failed():
    """An engine that hangs has a healthy worker."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    ejections.probed("a", True, 0.1)
    assert ejections.is_out("a", 0.1)


def test_who_asked_to_be_left_alone_is_passed_over_and_not_out():
    """Until its time is over, unless there is nobody else; a day is not believed."""
    ejections = Ejections()
    ejections.rest("a", 5.0, now=0.0)
    assert ejections.with_room("ab", 4.9) == ["b"]
    assert ejections.with_room("a", 4.9) == ["a"]
    assert ejections.with_room("ab", 5.0) == ["a", "b"]
    assert not ejections.is_out("a", 1.0)
    ejections.rest("a", 86_400.0, now=10.0)
    assert ejections.with_room("ab", 10.0 + LONGEST_REST_S) == ["a", "b"]


NAMES = st.sampled_from("abc")
EVENTS = st.lists(
    st.tuples(NAMES, st.sampled_from(["failed", "dead", "alive", "succeeded", "sent", "rest"]), st.floats(0, 20)),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_nobody_is_refused_and_nobody_is_out_for_ever(events):
    """A pause ends by itself, or a living worker ends it."""
    ejections, now = Ejections(), 0.0
    ejections.meet("abc", now)
    for name, event, later_s in events:
        if event == "sent":
            sent(ejections, name)
        elif event == "succeeded":
            succeeded(ejections, name)
        elif event == "rest":
            ejections.rest(name, later_s, now)
        elif event == "alive":
            ejections.probed(name, True, now)
        else:
            ejections.failed(name, now, needs_health=event == "dead")
        assert ejections.with_room(ejections.usable("abc", now), now)
        end_s = now + LONGEST_PAUSE_S
        assert ejections.needs_health(name) or not ejections.is_out(name, end_s)
        assert not ejections.needs_health(name) or name in ejections.due(end_s)
        now += later_s


def test_what_is_gone_is_forgotten():
    """State is as large as the fleet."""
    ejections = Ejections()
    ejections.failed("a", 0.0)
    ejections.failed("b", 0.0)
    ejections.rest("a", 5.0, 0.0)
    ejections.forget_all_but(["b", "c"], 0.1)
    assert not ejections.is_out("a", 0.1)
    assert ejections.is_out("b", 0.1)
    assert not ejections._rests


def test_rests_that_are_over_are_forgotten():
    """An engine that wanted a moment once does not cost each choice a look for ever."""
    ejections = Ejections()
    ejections.meet("a", 0.0)
    ejections.rest("a", 5.0, 0.0)
    ejections.forget_all_but("a", 4.9)
    assert not ejections.is_empty
    ejections.forget_all_but("a", 5.0)
    assert ejections.is_empty


@pytest.mark.parametrize("needs_health", [True, False])
def test_a_success_ends_whatever_was_held_against_an_instance(needs_health):
    """An answer is the best probe."""
    ejections = Ejections()
    ejections.failed("a", 0.0, needs_health=needs_health)
    succeeded(ejections, "a")
    assert not ejections.is_out("a", 0.0)
    assert ejections.due(100.0) == []


def test_why_less_is_sent_there_is_said_in_words():
    """Out after a failure, out until its worker answers, resting, new, let back slowly, or nothing."""
    ejections = Ejections()
    assert ejections.held_against("a", 0.0) is None
    ejections.failed("a", 0.0)
    assert ejections.held_against("a", 0.1) == "left alone for 0.4 s more after a failure"
    others = "while others have free slots"
    assert ejections.held_against("a", 0.6) == f"let back slowly: 0 of at most 1 under way {others}"
    ejections.meet(["old"], 0.0)
    ejections.meet(["old", "d"], NEW_HERE_S)
    assert ejections.held_against("d", NEW_HERE_S) == f"new, let in slowly: 0 of at most 1 under way {others}"
    ejections.failed("b", 0.0, needs_health=True)
    assert ejections.held_against("b", 60.0) == "out until its worker answers"
    ejections.rest("c", 3.0, 0.0)
    assert ejections.held_against("c", 1.0) == "left alone for 2 s more, as its engine asked"
    assert ejections.held_against("c", 4.0) is None
