import pytest

from tests.chaos.answers import Ending, Stream, error_ending, plain_ending

CONTENT = b'data: {"choices":[{"delta":{"content":" air"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
OURS = b'data: {"error":{"message":"x","code":"engine_broke_off"}}\n\n'
THEIRS = b'data: {"error":{"message":"x","code":500}}\n\n'

STREAMS = {
    "whole": ([CONTENT, FINISH, USAGE, DONE], True, Ending.WHOLE),
    "whole without [DONE]": ([CONTENT, FINISH, USAGE], True, Ending.WHOLE),
    "too few tokens": ([CONTENT, FINISH, USAGE.replace(b"2", b"1"), DONE], True, Ending.FORGED),
    "finish without tokens": ([CONTENT, FINISH, DONE], True, Ending.FORGED),
    "[DONE] without finish": ([CONTENT, DONE], True, Ending.FORGED),
    "our error": ([CONTENT, OURS], True, Ending.ERROR_EVENT),
    "our error, then [DONE]": ([CONTENT, OURS, DONE], True, Ending.FORGED),
    "our error after a finish": ([CONTENT, FINISH, OURS], True, Ending.FORGED),
    "the engine's error, then [DONE]": ([CONTENT, THEIRS, DONE], True, Ending.ERROR_EVENT),
    "connection lost": ([CONTENT], False, Ending.CUT),
    "connection lost after the finish": ([CONTENT, FINISH, USAGE], False, Ending.CUT),
    "an end without a word": ([CONTENT], True, Ending.CUT),
    "garbage before a finish": ([CONTENT, b"data: {oops\n\n", FINISH, USAGE, DONE], True, Ending.FORGED),
    "a comment before a finish": ([CONTENT, b": awake\n\n", FINISH, USAGE, DONE], True, Ending.WHOLE),
    "nothing": ([], True, Ending.EMPTY),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_whole_only_with_a_finish_and_all_its_tokens(name):
    """Whatever its bytes are cut into, the judgement is the same."""
    events, is_complete, expected = STREAMS[name]
    whole, by_byte = Stream(), Stream()
    for event in events:
        whole.feed(event)
    firsts = [by_byte.feed(bytes([byte])) for byte in b"".join(events)]
    assert whole.ending(asked_tokens=2, is_complete=is_complete) is expected
    assert by_byte.ending(asked_tokens=2, is_complete=is_complete) is expected
    assert firsts.count(True) == (CONTENT in events)


def test_a_plain_answer_is_whole_only_with_all_its_tokens():
    """Half a document is none, and a shorter answer is not the one that was asked for."""
    body = b'{"choices":[{"finish_reason":"length"}],"usage":{"completion_tokens":2}}'
    assert plain_ending(body, asked_tokens=2) is Ending.WHOLE
    assert plain_ending(body, asked_tokens=3) is Ending.FORGED
    assert plain_ending(body[:20], asked_tokens=2) is Ending.EMPTY
    assert plain_ending(b'{"choices":[]}', asked_tokens=2) is Ending.EMPTY


def test_an_error_needs_a_shape():
    """An error that says nothing a client could read is malformed."""
    assert error_ending(b'{"error":{"message":"no"}}') is Ending.REFUSED
    assert error_ending(b"Internal Server Error") is Ending.MALFORMED
    assert error_ending(b"{}") is Ending.MALFORMED
