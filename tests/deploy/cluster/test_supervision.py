from hypothesis import given
from hypothesis import strategies as st

from deploy.cluster.supervision import Finished, Kill, Launch, Policy, Sleep, Supervision, Terminate

POLICY = Policy(first_pause_s=0.2, longest_pause_s=10.0, settled_s=10.0, ending_s=5.0)


def running(now_s: float = 0.0, *, is_repeated: bool = False) -> Supervision:
    """Return the machine of a part that has just been started."""
    machine = Supervision(POLICY, is_repeated=is_repeated, now_s=now_s)
    machine.launched(now_s)
    return machine


def test_a_new_part_is_started_at_once():
    """Nothing is waited for before the first start, and the first start is no restart."""
    machine = Supervision(POLICY, now_s=7.0)
    assert machine.decide(7.0) == Launch()
    machine.launched(7.0)
    assert machine.decide(1e9) == Sleep(None)
    assert machine.restarts == 0


def test_the_pause_doubles_with_every_death_in_a_row():
    """0.2 s, 0.4 s, 0.8 s, … and never more than 10 s."""
    machine, now_s, pauses = running(), 0.0, []
    for _ in range(9):
        machine.exited(now_s, 1)
        decision = machine.decide(now_s)
        assert isinstance(decision, Sleep)
        assert decision.until_s is not None
        pauses.append(round(decision.until_s - now_s, 6))
        now_s = decision.until_s
        assert machine.decide(now_s) == Launch()
        machine.launched(now_s)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert machine.restarts == 9


def test_a_part_that_ran_for_a_while_begins_a_new_row():
    """A death after ten seconds of running is the first of its row."""
    machine = running()
    for now_s in (0.0, 0.2, 0.6):
        machine.exited(now_s, 1)
        machine.launched(now_s)
    machine.exited(0.6 + 9.9, 1)
    assert machine.due_s == 0.6 + 9.9 + 1.6
    machine.launched(20.0)
    machine.exited(30.0, 1)
    assert machine.due_s == 30.2


def test_a_repeated_part_that_ends_well_has_not_failed():
    """Status 0 of a part that is repeated is the end of a round: started anew, not counted as a restart."""
    machine = running(is_repeated=True)
    machine.exited(5.0, 0)
    assert machine.decide(5.0) == Sleep(5.2)
    machine.launched(5.2)
    assert (machine.restarts, machine.failures_in_a_row) == (0, 0)
    machine.exited(5.3, 0)
    assert machine.due_s == 5.5


def test_a_part_that_must_not_end_has_failed_with_status_0_too():
    """A server that ends well is a server that is gone."""
    machine = running()
    machine.exited(1.0, 0)
    machine.launched(1.2)
    assert machine.restarts == 1


def test_a_running_part_is_asked_to_end_and_then_killed():
    """SIGTERM first, SIGKILL when the time it was given is over, then only its end is waited for."""
    machine = running()
    machine.stop_requested(3.0)
    assert machine.decide(3.0) == Terminate()
    machine.terminated(3.0)
    assert machine.decide(3.0) == Sleep(8.0)
    assert machine.decide(8.0) == Kill()
    machine.killed()
    assert machine.decide(99.0) == Sleep(None)
    machine.exited(99.0, -9)
    assert machine.decide(99.0) == Finished()
    assert machine.restarts == 0


def test_a_part_that_waits_for_its_restart_is_simply_not_started():
    """Nothing runs, so nothing has to be ended."""
    machine = running()
    machine.exited(1.0, 1)
    machine.stop_requested(1.1)
    assert machine.decide(1.1) == Finished()
    assert machine.decide(100.0) == Finished()


def test_a_part_that_is_stopped_while_it_is_launched_is_ended_when_it_runs():
    """Between the decision to start it and its first moment it has no process that could be asked."""
    machine = Supervision(POLICY)
    assert machine.decide(0.0) == Launch()
    machine.stop_requested(0.1)
    machine.launched(0.2)
    assert machine.decide(0.2) == Terminate()
    machine.terminated(0.2)
    machine.exited(0.3, -15)
    assert machine.decide(0.3) == Finished()


def test_a_part_that_is_stopped_while_its_launch_fails_is_not_started_again():
    """There is nothing to end."""
    machine = Supervision(POLICY)
    machine.stop_requested(0.1)
    machine.exited(0.2, 127)
    assert machine.decide(100.0) == Finished()


def test_haste_kills_what_was_being_launched():
    """The second Ctrl-C may come in that moment too."""
    machine = Supervision(POLICY)
    machine.stop_requested(0.1)
    machine.hurried(0.1)
    machine.launched(0.2)
    assert machine.decide(0.2) == Kill()


def test_haste_kills_at_once():
    """Whoever presses Ctrl-C twice does not want to wait."""
    machine = running()
    machine.hurried(1.0)
    assert machine.decide(1.0) == Sleep(None)  # nobody has asked it to end yet
    machine.stop_requested(2.0)
    machine.terminated(2.0)
    machine.hurried(2.1)
    assert machine.decide(2.1) == Kill()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["time", "exit", "stop", "hurry"]), st.floats(0, 30), st.integers(-15, 3)), max_size=60
)


@given(EVENTS, st.booleans())
def test_whatever_happens_the_part_ends_when_it_is_stopped(events, is_repeated):
    """Any order of deaths, stops and waiting: pauses stay within bounds, and a stopped part is never started again."""
    machine, now_s, is_alive, is_stopped = Supervision(POLICY, is_repeated=is_repeated), 0.0, False, False
    for event, passed_s, status in [*events, ("stop", 0.0, 0), ("exit", 6.0, 0), ("exit", 6.0, 0)]:
        now_s += passed_s
        if event == "exit" and is_alive:
            machine.exited(now_s, status)
            is_alive = False
        elif event == "stop":
            machine.stop_requested(now_s)
            is_stopped = True
        elif event == "hurry":
            machine.hurried(now_s)
        match machine.decide(now_s):
            case Launch():
                assert not is_alive
                assert not is_stopped
                machine.launched(now_s)
                is_alive = True
            case Terminate():
                assert is_alive
                assert is_stopped
                machine.terminated(now_s)
            case Kill():
                assert is_alive
                machine.killed()
            case Sleep(until_s=until_s):
                assert until_s is None or now_s < until_s <= now_s + 10.0
            case Finished():
                assert not is_alive
                assert is_stopped
    assert machine.decide(now_s) == Finished()
    assert machine.restarts >= 0
