"""What stands in an event stream: bytes pass as they came however they are cut, the usage event alone is kept out."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hop.sse import (
    LONGEST_HELD_EVENT,
    EventTap,
    Usage,
    ends_with_error,
    error_code,
    event_data,
    first_event,
    is_error_event,
    read_usage,
)

RECORDINGS = Path(__file__).parent.parent / "data" / "engines"

CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}\n\n'
USAGE = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[],'
    b'"usage":{"prompt_tokens":14,"total_tokens":22,"completion_tokens":8}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"engine died","type":"InternalServerError","param":null,"code":500}}\n\n'
COMMENT = b": keep-alive\n\n"
#: As every chunk looks with `continuous_usage_stats`.
CONTINUOUS = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":14,"completion_tokens":3}}\n\n'
)
RESPONSE = (
    b"event: response.completed\n"
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":6}}}\n\n'
)


def recorded_streams() -> dict[str, bytes]:
    """The event streams of the recordings, as they stood on the wire but for what was cut out of their middle."""
    streams = {}
    for path in sorted(RECORDINGS.glob("vllm*http*.txt")):
        for section in re.split(r"^===== ", path.read_text(), flags=re.MULTILINE)[1:]:
            events = [line for line in section.splitlines() if line.startswith("data: ")]
            if len(events) > 1:
                streams[f"{path.stem}: {section.splitlines()[0]}"] = "".join(f"{e}\n\n" for e in events).encode()
    return streams


RECORDED = recorded_streams()


def through(tap: EventTap, data: bytes, cuts: list[int]) -> bytes:
    """Feed `data` in pieces, and add what is held back at the end."""
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    passed = [tap.feed(data[a:b]) for a, b in pairwise(edges) if a < b]
    return b"".join(passed) + tap.end()


CUTS = st.lists(st.integers(0, 3000), max_size=12)


def test_there_are_recorded_streams():
    """Else the tests below would say nothing."""
    assert len(RECORDED) >= 3
    assert any(b'"usage":{' in stream for stream in RECORDED.values())


@pytest.mark.parametrize("title", sorted(RECORDED))
@given(cuts=CUTS)
def test_a_recorded_stream_passes_byte_for_byte_however_it_is_cut(title, cuts):
    """A tap that only listens changes nothing."""
    stream = RECORDED[title]
    assert through(EventTap(strips_usage=False), stream, cuts) == stream


@pytest.mark.parametrize("title", sorted(RECORDED))
@given(cuts=CUTS)
def test_of_a_recorded_stream_only_the_usage_event_is_kept_out(title, cuts):
    """What is left is the stream without events of empty choices and a usage."""
    stream = RECORDED[title]
    kept = b"".join(
        event for event in re.findall(rb".*?\n\n", stream, re.DOTALL) if b'"choices":[],"usage":{' not in event
    )
    assert through(EventTap(strips_usage=True), stream, cuts) == kept


PIECES = st.lists(st.sampled_from([CHUNK, USAGE, DONE, ERROR, COMMENT, CONTINUOUS, RESPONSE]), max_size=8)
UNFINISHED = st.sampled_from([b"", b"data: ", CHUNK[:-1], USAGE[:-2], b"\n", b": x"])


@given(pieces=PIECES, rest=UNFINISHED, cuts=CUTS, is_crlf=st.booleans())
def test_any_stream_passes_without_its_usage_event_only(pieces, rest, cuts, is_crlf):
    """With either line end, with comments, with an unfinished last event, in any pieces."""
    if is_crlf:
        pieces, rest = [piece.replace(b"\n", b"\r\n") for piece in pieces], rest.replace(b"\n", b"\r\n")
    usage = USAGE.replace(b"\n", b"\r\n") if is_crlf else USAGE
    stream = b"".join(pieces) + rest
    kept = b"".join(piece for piece in pieces if piece != usage) + rest
    assert through(EventTap(strips_usage=False), stream, cuts) == stream
    assert through(EventTap(strips_usage=True), stream, cuts) == kept


@given(data=st.binary(max_size=300), cuts=CUTS)
def test_bytes_that_are_no_event_stream_pass(data, cuts):
    """Nothing raises, nothing is lost."""
    assert through(EventTap(strips_usage=True), data, cuts) == data


@given(cuts=CUTS)
def test_the_usage_is_read_however_it_is_cut_and_whether_or_not_it_is_stripped(cuts):
    """`"usage":null` in every chunk before it does not hide it."""
    for strips in (False, True):
        tap = EventTap(strips_usage=strips)
        through(tap, CHUNK * 3 + USAGE + DONE, cuts)
        assert tap.usage() == Usage(prompt_tokens=14, completion_tokens=8)


def test_of_continuous_usage_the_last_counts_and_all_pass():
    """Such chunks carry choices, so they are the client's."""
    tap = EventTap(strips_usage=True)
    later = CONTINUOUS.replace(b'"completion_tokens":3', b'"completion_tokens":4')
    assert through(tap, CONTINUOUS + later + DONE, []) == CONTINUOUS + later + DONE
    assert tap.usage() == Usage(prompt_tokens=14, completion_tokens=4)


def test_a_chunk_with_null_usage_after_the_usage_does_not_hide_it():
    """Even where it is written with a blank."""
    tap = EventTap(strips_usage=False)
    through(tap, CONTINUOUS + b'data: {"choices":[{"index":0}],"usage": null}\n\n' + DONE, [])
    assert tap.usage() == Usage(prompt_tokens=14, completion_tokens=3)


def test_the_usage_of_a_response_is_read():
    """`/v1/responses` says input and output, inside its last event."""
    tap = EventTap(strips_usage=False)
    tap.feed(RESPONSE)
    assert tap.usage() == Usage(prompt_tokens=5, completion_tokens=6, is_of_completion=False)


TIMINGS = b'data: {"choices":[{"finish_reason":"length"}],"timings":{"cache_n":13,"prompt_n":1,"predicted_n":8}}\n\n'


@given(cuts=CUTS)
def test_the_usage_of_llama_cpp_is_read_from_its_timings_which_stay(cuts):
    """Its last event has them unasked; what came from the cache is of the prompt too."""
    tap = EventTap(strips_usage=True)
    stream = CHUNK + TIMINGS + DONE
    assert through(tap, stream, cuts) == stream
    assert tap.usage() == Usage(prompt_tokens=14, completion_tokens=8, cached_tokens=13)


@pytest.mark.parametrize("timings", [b"7", b"[]", b"{}", b'{"cache_n":-1,"prompt_n":"x","predicted_n":null}'])
def test_timings_of_another_shape_tell_nothing(timings):
    """Nor do they raise."""
    read = read_usage(b'{"timings":' + timings + b"}")
    assert read is None or read == Usage()


def test_done_in_the_same_read_as_the_usage_passes():
    """Only the usage event leaves the read."""
    tap = EventTap(strips_usage=True)
    assert tap.feed(CHUNK + USAGE + DONE) == CHUNK + DONE
    assert tap.end() == b""


def test_whole_events_pass_at_once_and_a_part_waits():
    """Nothing that is whole is held back."""
    tap = EventTap(strips_usage=True)
    assert tap.feed(CHUNK) == CHUNK
    assert tap.feed(CHUNK + USAGE[:20]) == CHUNK
    assert tap.feed(USAGE[20:]) == b""
    assert tap.feed(DONE[:-1]) == b""
    assert tap.feed(DONE[-1:]) == DONE


@pytest.mark.parametrize("size", [LONGEST_HELD_EVENT - 100, 3 * LONGEST_HELD_EVENT])
def test_a_huge_event_passes_and_is_not_held_for_ever(size):
    """Reads of 64 KiB; never more than the limit and one read is kept."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * size + b'"}}]}\n\n'
    tap, passed, fed = EventTap(strips_usage=True), 0, 0
    for start in range(0, len(event), 65536):
        piece = event[start : start + 65536]
        passed += len(tap.feed(piece))
        fed += len(piece)
        assert fed - passed <= LONGEST_HELD_EVENT + 65536
    assert passed + len(tap.end()) == len(event)
    assert tap.feed(USAGE + DONE) == DONE


def test_an_error_event_is_noticed():
    """One engine sends it inside a stream of status 200, and then [DONE]."""
    tap = EventTap(strips_usage=True)
    assert tap.feed(CHUNK) == CHUNK
    assert not tap.has_error
    assert tap.feed(ERROR + DONE) == ERROR + DONE
    assert tap.has_error


@pytest.mark.parametrize(
    ("event", "is_error"),
    [
        (ERROR, True),
        (ERROR.replace(b"\n", b"\r\n"), True),
        (b'data: {"error":"Unauthorized"}\n\n', True),
        (b'data:{"error":{"code":503}}\n\n', True),
        (b'event: error\ndata: {"error":{"code":503}}\n\n', True),
        (b'data: {"error":null,"choices":[]}\n\n', False),
        (CHUNK, False),
        (DONE, False),
        (COMMENT, False),
        (b'data: {"choices":[{"delta":{"content":"{\\"error\\":1}"}}]}\n\n', False),
        (b"data: {\xff\n\n", False),
        (b"data: " + b"[" * 100_000 + b"\n\n", False),
        (b'data: {"x":' + b"[" * 100_000 + b"\n\n", False),
    ],
)
def test_what_an_error_event_is(event, is_error):
    """JSON with an `error` that is not null; nothing else, and nothing raises."""
    assert is_error_event(event) is is_error


def test_the_first_event_is_the_first_with_data():
    """Comments are keep-alives: they say nothing about whether the request was taken."""
    assert first_event(COMMENT + CHUNK + DONE) == CHUNK
    assert first_event(COMMENT) is None
    assert first_event(b"") is None
    assert event_data(b": note\nevent: x\ndata: {}\nid: 1\n\n") == b"{}"


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":3}}', Usage(prompt_tokens=3)),
        (b'{"usage":{"prompt_tokens":0,"completion_tokens":0}}', Usage(prompt_tokens=0, completion_tokens=0)),
        (b'{"usage":{"prompt_tokens":-3,"completion_tokens":true}}', Usage()),
        (b'{"usage":{"prompt_tokens":2.5,"completion_tokens":"8"}}', Usage()),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}', Usage(9, None, 4)),
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":%d}}' % 10**18, Usage(9)),
        (b'{"usage":null}', None),
        (b'{"usage":"many"}', None),
        (b'{"usage":[1]}', None),
        (b"[]", None),
        (b"Internal Server Error", None),
        (b"\xff", None),
        (b'{"x":' + b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_read_usage_believes_whole_numbers_only(body, usage):
    """Anything else is unknown, and nothing raises."""
    assert read_usage(body) == usage


@given(st.binary(max_size=200))
def test_read_usage_never_raises(body):
    """An engine may say anything."""
    read_usage(body)
    read_usage(b'{"usage":' + body + b"}")


# -- /v1/responses


def test_the_recorded_begin_of_a_response_is_no_event_of_its_work():
    """It comes before the engine has taken the request; what comes first of the work comes after it."""
    stream = next(stream for name, stream in RECORDED.items() if "/v1/responses" in name)
    at = stream.index(b'"type":"response.in_progress"')
    end = stream.index(b"\n\n", at) + 2
    assert first_event(stream[:end]) is None
    first = first_event(stream)
    assert first is not None
    assert stream[end:].startswith(first)
    assert b'"type":"response.output_item.added"' in first


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"delta":{"content":"\\"type\\":\\"response.created\\""}}]}\n\n',
        b'data: {"type":"response.output_text.delta","delta":"response.created"}\n\n',
        b'data: {"type":"response.created"\n\n',
        b'data: "response.created"\n\n',
    ],
    ids=["content", "delta", "no JSON", "a word"],
)
def test_only_the_type_of_an_event_makes_it_a_begin(event):
    """What a model writes is its work."""
    assert first_event(event) == event


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}}}', 500),
        (b'{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}', 429),
        (b'{"type":"response.failed","response":{"error":{"code":"invalid_prompt"}}}', 400),
        (b'{"type":"response.failed","response":{"error":null}}', 500),
        (b'{"type":"response.failed"}', 500),
        (b'{"type":"response.failed","response":7}', 500),
        (b'{"type":"error","code":"server_error","message":"x"}', 500),
        (b'{"type":"error","code":null,"message":"x"}', 500),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}', 500),
        (b'{"error":{"code":"invalid_api_key"}}', 500),
        (b'{"type":"response.completed","response":{"error":null}}', None),
        (b'{"type":["error"]}', None),
    ],
)
def test_a_response_that_failed_is_an_error_as_any_other(data, code):
    """In its own words: their codes are words, and its error stands inside the response."""
    event = b"event: x\ndata: " + data + b"\n\n"
    assert error_code(event) == code
    assert ends_with_error(event) is (code == 500 and b'"error"' in data)
