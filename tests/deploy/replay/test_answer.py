from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.replay.answer import PlainScan, StreamScan

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
NULL_ROLE = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
EMPTY = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
SPACED = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}}]}\r\n\r\n'
TEXT = b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
THINKING = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"hm"}}]}\n\n'
COMMENT = b": ping\n\n"
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def scanned(*parts: bytes) -> StreamScan:
    """A scan that was fed these bytes."""
    scan = StreamScan()
    for part in parts:
        scan.add(part)
    return scan


@pytest.mark.parametrize("event", [WORD, EMPTY, SPACED, TEXT, THINKING, FINISH])
def test_first_content_is_told_once(event):
    """The first event that carries an answer is told when it is complete, and never again."""
    scan = StreamScan()
    assert [scan.add(part) for part in (COMMENT, ROLE, event, WORD)] == [False, False, True, False]


@pytest.mark.parametrize("event", [ROLE, NULL_ROLE, COMMENT, DONE, USAGE, b"data: {bad\n\n"])
def test_other_events_are_no_content(event):
    """The opening role, comments, usage and rubbish come before prefill has ended or say nothing of it."""
    assert not scanned(event).has_content


@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_cuts_change_nothing(cuts):
    """However the network cuts a stream, first content is told once and the verdict is the same."""
    whole = ROLE + WORD * 3 + FINISH + USAGE + DONE
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    scan = StreamScan()
    told = [scan.add(whole[a:b]) for a, b in pairwise(edges)]
    assert told.count(True) == 1
    verdict = scan.verdict()
    assert (verdict.failure, verdict.prompt_tokens, verdict.output_tokens) == (None, 7, 3)
    assert scan.bytes_received == len(whole)


def test_long_stream_is_not_kept():
    """A million bytes of answer leave less than a tenth of it in memory, and the verdict stands."""
    scan = scanned(ROLE, *[WORD] * 12_000, FINISH, USAGE, DONE)
    assert scan.bytes_received > 900_000
    assert scan._kept_bytes < 70_000
    assert scan.verdict().output_tokens == 3


def test_done_without_finish_is_an_error():
    """`[DONE]` does not mean success."""
    failure = scanned(ROLE, WORD, DONE).verdict().failure
    assert failure is not None
    assert failure.kind == "no finish_reason"


def test_finish_without_done_is_an_answer():
    """Some servers send no `[DONE]`; without usage the tokens are unknown, not zero."""
    verdict = scanned(ROLE, WORD, FINISH).verdict()
    assert (verdict.failure, verdict.output_tokens) == (None, None)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"busy","code":503}}\n\n',
        b'data: {"error":"busy"}\n\n',
        b'data: {"object":"error","message":"busy"}\n\n',
    ],
)
@pytest.mark.parametrize("before", [(), (ROLE, WORD), (ROLE, WORD, FINISH, USAGE)])
def test_error_event_is_an_error_wherever_it_comes(event, before):
    """An error inside a 200 stream counts, in each of its shapes, also when `[DONE]` follows it."""
    failure = scanned(*before, event, DONE).verdict().failure
    assert failure is not None
    assert (failure.kind, failure.detail) == ("error event", "busy")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"choices":[{"message":{},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}', None),
        (b'{"choices":[{"message":{}}]}', "no finish_reason"),
        (b'{"error":{"message":"x"}}', "error event"),
        (b"<html>", "bad answer"),
        (b"", "bad answer"),
        (b"[]", "bad answer"),
    ],
)
def test_plain_answers_are_judged(body, kind):
    """A 200 alone is no answer: it needs the JSON of a completion with a finish."""
    scan = PlainScan()
    scan.add(body[:5])
    scan.add(body[5:])
    failure = scan.verdict().failure
    assert (failure and failure.kind) == kind
