"""What a proxy reads of a body: tolerant of everything but a body it cannot route."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.facts import LONGEST_MODEL, BadRequest, read_facts
from tests.costs import Calls, peak_bytes

CHAT = "/v1/chat/completions"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "messages",
    "prompt",
    "input",
    "tools",
    "instructions",
    "query",
    "prompt_embeds",
)


def read(body: object, path: str = CHAT):
    """Facts of a body given as a value."""
    return read_facts(path, msgspec.json.encode(body))


def test_what_a_choice_needs_is_found():
    """Model, limit and stream."""
    facts = read({"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "h"}]})
    assert (facts.model, facts.output_cap, facts.is_stream) == ("m", 9, True)


@pytest.mark.parametrize(
    ("body", "wants"),
    [
        ({"stream": True}, False),
        ({"stream": True, "stream_options": None}, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True),
        ({"stream": True, "stream_options": {}}, True),
        ({"stream": False}, True),
    ],
)
def test_usage_is_asked_for_only_where_the_client_has_not_spoken_of_it(body, wants):
    """And only for streams of the paths that know the option."""
    assert read(body).wants_usage is wants
    assert read(body, "/v1/responses").wants_usage is True


@pytest.mark.parametrize(
    ("body", "tells"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, False),
        ({"stream": True, "stream_options": {"include_usage": 1}}, False),
        ({"stream": True, "stream_options": {}}, False),
        ({"stream": True, "stream_options": "x"}, False),
        ({"stream": True, "stream_options": None}, False),
        ({"stream": True}, False),
        ({"stream": False}, True),
        ({"stream": None}, True),
        ({}, True),
    ],
)
def test_a_stream_tells_its_usage_only_where_its_client_asks_for_it(body, tells):
    """All else does without being asked."""
    assert read(body).tells_usage is tells
    assert read(body, "/v1/responses").tells_usage is True


@pytest.mark.parametrize("stream", ["true", "false", "", 1, 0, 1.5, [True], {}])
def test_a_stream_that_is_no_boolean_is_refused_by_name(stream):
    """Engines do not agree on what it means."""
    with pytest.raises(BadRequest, match="stream must be a boolean") as refused:
        read({"stream": stream})
    assert refused.value.param == "stream"


@pytest.mark.parametrize("limit", [0, -1, 1.5, "9", True, None, [1], 2**60])
def test_a_limit_that_is_none_is_left_to_the_engine(limit):
    """Not limited, as far as a choice is concerned."""
    assert read({"max_tokens": limit}).output_cap is None
    assert read({"max_tokens": limit, "max_completion_tokens": 7}).output_cap == 7


def test_an_embedding_has_no_output():
    """Whatever its body says."""
    assert read({"input": "x", "max_tokens": 5}, "/v1/embeddings").output_cap == 0


@pytest.mark.parametrize("model", [1, True, ["m"], {"name": "m"}])
def test_a_model_that_is_no_string_is_refused_by_name(model):
    """The client learns which field."""
    with pytest.raises(BadRequest, match="model must be a string") as refused:
        read({"model": model})
    assert refused.value.param == "model"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'"x"', b"{", b"\xff", b"model=m", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_a_body_that_is_no_json_object_is_refused(body):
    """Also one that is nested without end."""
    with pytest.raises(BadRequest):
        read_facts(CHAT, body)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)))
def test_fields_of_any_type_are_read_or_left_out(body):
    """Only a model or a stream of another type is refused."""
    if not (isinstance(body.get("model"), (str, type(None))) and isinstance(body.get("stream"), (bool, type(None)))):
        with pytest.raises(BadRequest):
            read(body)
        return
    facts = read(body)
    assert facts.output_cap is None or facts.output_cap >= 1
    assert facts.sequences >= 1
    assert facts.model is None or facts.model == body["model"]


@given(st.binary(max_size=60), st.sampled_from(FIELDS))
def test_arbitrary_bytes_raise_nothing_but_bad_request(raw, field):
    """As a body, and as the value of any field."""
    for body in (raw, b'{"%b":%b}' % (field.encode(), raw), b'{"%b":["%b"]}' % (field.encode(), raw)):
        with contextlib.suppress(BadRequest):
            read_facts(CHAT, body)


@given(st.lists(st.text()) | st.lists(st.integers()) | st.lists(st.lists(st.integers())), st.sampled_from([None, 1]))
def test_each_prompt_of_a_list_has_an_answer(prompts, indent):
    """Whatever quotes and brackets stand in it; token ids alone are one prompt."""
    several = [item for item in prompts if not isinstance(item, int)]
    facts = read_facts("/v1/completions", json.dumps({"n": 2, "prompt": prompts}, indent=indent).encode())
    assert facts.sequences == 2 * max(1, len(several))


def test_the_longest_model_may_be_written_in_escapes():
    """Two halves for each character; one character more is too many."""
    assert read_facts(CHAT, json.dumps({"model": "😀" * LONGEST_MODEL}).encode()).model == "😀" * LONGEST_MODEL
    with pytest.raises(BadRequest, match="at most"):
        read({"model": "m" * (LONGEST_MODEL + 1)})


MESSAGES = [{"role": "user", "content": "hello there"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "look something up in the wide world"}}]


@pytest.mark.parametrize(
    ("path", "about", "beside"),
    [
        (CHAT, {"messages": MESSAGES}, {"tools": TOOLS}),
        (CHAT, {"messages": MESSAGES}, {"functions": TOOLS}),
        ("/v1/messages", {"messages": MESSAGES}, {"system": "be kind to whoever asks"}),
        ("/v1/responses", {"input": "hello"}, {"instructions": "be kind to whoever asks", "tools": TOOLS}),
        ("/v1/rerank", {"documents": ["a", "b"]}, {"query": "which letter comes first"}),
        ("/v1/score", {}, {"text_1": "a letter", "text_2": ["a", "b"]}),
        ("/v1/completions", {"prompt": "def f():"}, {"suffix": "return x"}),
    ],
)
def test_all_that_a_template_puts_into_a_prompt_is_counted(path, about, beside):
    """An agent's tools are a hundred times what it says; every byte of them counts as what is said does."""
    alone, whole = read(about, path), read({**about, **beside}, path)
    added = sum(len(msgspec.json.encode(value)) for value in beside.values())
    assert len(whole.text) - len(alone.text) == added


def test_a_prompt_with_tools_teaches_what_a_token_is():
    """It is text, and all of it is counted."""
    assert read({"messages": MESSAGES, "tools": TOOLS, "response_format": {"type": "json_object"}}).is_text_only


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_embeds", "gASVAA=="),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("chat_template", "{{ messages }}"),
        ("truncate_prompt_tokens", 512),
        ("query", "asked again for each document"),
    ],
)
def test_a_prompt_that_is_more_or_less_than_its_text_teaches_nothing(field, value):
    """What an engine counts for it has no byte here, or more than one."""
    assert not read({"messages": MESSAGES, field: value}).is_text_only
    assert read({"messages": MESSAGES, **({field: None} if field != "query" else {})}).is_text_only


@pytest.mark.parametrize("kind", ["image_url", "audio_url", "input_audio", "image_embeds"])
def test_media_in_a_message_are_no_text_and_a_tool_of_that_name_is(kind):
    """Only what is said can hold media."""
    with_media = [{"role": "user", "content": [{"type": kind, kind: "http://a"}]}]
    assert not read({"messages": with_media}).is_text_only
    tools = [{"type": "function", "function": {"name": kind}}]
    assert read({"messages": MESSAGES, "tools": tools}).is_text_only


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("piece", [b"[],", b"[1],", b"{},", b'"",', b'"[",', b"151643,", b'"\\\\",'])
def test_a_body_is_read_in_no_more_than_three_times_its_memory(field, piece):
    """And with a few calls for each KiB, however many items it has."""
    body = b'{"%b":[%b0]}' % (field.encode(), piece * (500_000 // len(piece)))

    def facts() -> None:
        with contextlib.suppress(BadRequest):
            read_facts("/v1/completions", body)

    assert peak_bytes(facts) < 3 * len(body)
    assert Calls.of(facts) < len(body) / 100
