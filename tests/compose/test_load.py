"""What is said of streams and faults: lost, broken, recovered, and the table."""

import pytest

from tests.compose.load import LONG_EVERY, RECOVERED, Fault, Stream, ended_in, recovery_s, table, take


def stream(at_s: float, **more) -> Stream:
    """A short stream that began at once and ended well a second later."""
    return Stream(
        **{
            "number": 1,
            "started_s": at_s,
            "first_event_s": at_s + 0.1,
            "ended_s": at_s + 1.0,
            "reason": "stop",
            "is_done": True,
            **more,
        }
    )


def test_recovery_is_the_start_of_twenty_streams_that_nothing_has_affected():
    """One that breaks begins the count anew; too few are no recovery."""
    streams = [stream(at_s, is_done=at_s != 3) for at_s in range(4 + RECOVERED)]

    assert recovery_s(streams, Fault("one", 2.5)) == 1.5
    assert recovery_s(streams, Fault("late", 6.5)) is None


@pytest.mark.parametrize(("number", "is_unaffected"), [(1, False), (LONG_EVERY, True)])
def test_a_late_first_event_is_an_effect_unless_the_prompt_was_long(number, is_unaffected):
    """What takes seconds by itself is not the fault's doing."""
    assert stream(0.0, number=number, first_event_s=3.0, ended_s=4.0).is_unaffected is is_unaffected


def test_a_stream_is_whole_only_with_its_reason_and_its_end():
    """An error event spoils it, and so does either of them missing."""
    one = Stream(1, 0.0)
    take(one, '{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}')
    take(one, '{"choices":[{"delta":{},"finish_reason":"stop"}]}')
    assert not one.is_whole
    take(one, "[DONE]")
    assert one.is_whole
    take(one, '{"error":{"message":"the engine broke off"}}')
    assert not one.is_whole


def test_lost_and_broken_are_told_apart_by_the_first_event():
    """Without one it is lost, with one it is broken, and what still runs is neither."""
    lost, broken = stream(0.0, first_event_s=None, is_done=False), stream(0.0, is_done=False)
    running = stream(0.0, ended_s=None, is_done=False)

    assert (lost.is_lost, lost.is_broken) == (True, False)
    assert (broken.is_lost, broken.is_broken) == (False, True)
    assert (running.is_lost, running.is_broken) == (False, False)


def test_a_stream_counts_with_the_fault_after_which_it_ended():
    """Each stream has one line of the table."""
    first, second = Fault("first", 10.0, 20.0), Fault("second", 20.0)
    streams = [stream(9.5), stream(19.5), stream(30.0, first_event_s=None, is_done=False)]

    assert ended_in(streams, first) == streams[:1]
    assert ended_in(streams, second) == streams[1:]
    assert table(streams, [first, second]).splitlines()[2:] == [
        "| first | 1, 0 | 0 | 0 | 0.1 s | not seen |",
        "| second | 1, 0 | 1 | 0 | 0.1 s | not seen |",
    ]
