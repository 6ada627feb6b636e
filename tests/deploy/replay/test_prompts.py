import json

from hypothesis import given
from hypothesis import strategies as st

from deploy.replay.prompts import PromptMaker
from deploy.replay.traces import TraceRow

MAKER = PromptMaker("tiny")


@given(number=st.integers(0, 10**6), tokens=st.integers(1, 20_000), ids=st.lists(st.integers(0, 10**9), max_size=60))
def test_prompts_have_the_wanted_length(number, tokens, ids):
    """Four bytes a token, whatever the trace says of prefixes, and nothing that JSON would escape."""
    prompt = MAKER.prompt(number, TraceRow(0.0, tokens, 1, tuple(ids)))
    assert len(prompt) == 4 * tokens
    assert json.dumps(prompt.decode("ascii")) == f'"{prompt.decode("ascii")}"'


@given(shared=st.lists(st.integers(0, 10**6), min_size=1, max_size=4), a=st.integers(0, 99), b=st.integers(100, 199))
def test_equal_prefix_ids_begin_with_equal_text(shared, a, b):
    """Blocks of equal ids are equal text, and the first different id is different text."""
    size = 512 * (len(shared) + 1)
    first = MAKER.prompt(1, TraceRow(0.0, size, 1, (*shared, 2_000_000 + a)))
    second = MAKER.prompt(2, TraceRow(0.0, size, 1, (*shared, 2_000_000 + b)))
    common = 4 * 512 * len(shared)
    assert first[:common] == second[:common]
    assert first[common : common + 40] != second[common : common + 40]


def test_prompts_without_ids_share_no_prefix():
    """Requests of a trace that says nothing of prefixes must not hit one another's prefix cache."""
    row = TraceRow(0.0, 500, 1)
    assert len({MAKER.prompt(number, row)[:16] for number in range(1000)}) == 1000


def test_body_asks_for_the_lengths_of_the_row():
    """The body is a chat completion with usage, the row's output length capped, equal for equal seeds."""
    row = TraceRow(0.0, 100, 300)
    body = PromptMaker('a "model"', max_output=64, ignore_eos=True).body(3, row)
    asked = json.loads(body)
    assert (asked["model"], asked["max_tokens"], asked["ignore_eos"]) == ('a "model"', 64, True)
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
    assert body == PromptMaker('a "model"', max_output=64, ignore_eos=True).body(3, row)
    assert body != PromptMaker('a "model"', max_output=64, ignore_eos=True, seed=1).body(3, row)


def test_plain_body_does_not_stream():
    """A plain replay asks for one JSON document."""
    asked = json.loads(PromptMaker("tiny", stream=False).body(0, TraceRow(0.0, 10, 20)))
    assert asked["stream"] is False
    assert "stream_options" not in asked
    assert asked["max_tokens"] == 20
