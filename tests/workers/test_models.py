import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.registration import MAX_ENTRY_BYTES, Registration, encode_registration
from tests.costs import Calls, peak_bytes
from workers.config import InstanceConfig, WorkerConfig
from workers.models import Aliases, fitting, read_models

PAGES = Path(__file__).parent.parent / "data" / "engines"


def recorded_models(file: str) -> bytes:
    """Body of GET /v1/models in a recording."""
    section = (PAGES / file).read_bytes().split(b"===== GET /v1/models\n")[1].split(b"=====")[0]
    return section[section.index(b"\n{") + 1 :].strip()


def test_all_names_that_vllm_serves_are_read():
    """Names given by --served-model-name stand there as models of their own."""
    listed = read_models(recorded_models("vllm-0.32.0-http.txt"))
    assert (listed.names, listed.owner) == (("tiny", "tiny-alias"), "vllm")
    assert listed.context_tokens == 2048


def test_the_aliases_of_llama_cpp_are_names_too():
    """They stand beside the model; one that is the model's own name is there once."""
    body = recorded_models("llama.cpp-11434-http.txt")
    assert (read_models(body).names, read_models(body).owner) == (("tiny",), "llamacpp")
    assert read_models(body.replace(b'"aliases":["tiny"]', b'"aliases":["tiny","small"]')).names == ("tiny", "small")


def test_lora_adapters_are_models():
    """The vLLM lists each adapter with the model it was made for as its parent."""
    body = (
        b'{"data":[{"id":"base","parent":null},{"id":"sql-lora","parent":"base"},{"id":"chat-lora","parent":"base"}]}'
    )
    assert read_models(body).names == ("base", "sql-lora", "chat-lora")


@pytest.mark.parametrize("length", [b"null", b"0", b"-1", b"true", b"8192.0", b'"8192"', b"9" * 30])
def test_a_length_that_is_none_is_not_told(length):
    """And takes no part where another model tells its own."""
    assert read_models(b'{"data":[{"id":"m","max_model_len":' + length + b"}]}").context_tokens is None
    both = b'{"data":[{"id":"m","max_model_len":' + length + b'},{"id":"n","max_model_len":4096}]}'
    assert read_models(both).context_tokens == 4096


@pytest.mark.parametrize("extra", [b'"aliases":null', b'"aliases":"x"', b'"aliases":[1,null]', b'"owned_by":7'])
def test_what_is_no_name_beside_a_model_is_left_out(extra):
    """A list of models is not lost for what else stands in it."""
    listed = read_models(b'{"data":[{"id":"m",' + extra + b"}]}")
    assert (listed.names, listed.owner) == (("m",), "")


def test_names_that_would_forge_a_log_or_rule_a_terminal_are_left_out():
    """Whoever runs the engine chooses them; they are printed."""
    assert read_models(b'{"data":[{"id":"m"},{"id":"m\\nERROR x"},{"id":"\\u001b[2J"}]}').names == ("m",)


def test_names_beyond_what_a_registration_holds_are_left_out():
    """A thousand adapters with long names: the instance stays in the view of its proxies."""
    names = tuple(f"adapter-{number}-" + "x" * 100 for number in range(1_000))
    kept = fitting(names)
    entry = encode_registration(Registration(worker_url="http://w:1", engine_url="http://e:1", models=kept))
    assert 300 < len(kept) < 1_000
    assert kept == names[: len(kept)]
    assert len(entry) < MAX_ENTRY_BYTES


def test_an_alias_is_announced_beside_the_model_it_stands_for():
    """An alias of a model that the engine does not serve is not."""
    aliases = Aliases(["gpt-4o=tiny", "other=absent", "tiny-alias=tiny"])
    assert aliases.beside(("tiny", "tiny-alias")) == ("tiny", "tiny-alias", "gpt-4o")
    assert aliases.beside(()) == ()


@pytest.mark.parametrize("given", ["", "x", "x=", "=x"])
def test_what_is_no_alias_is_refused_with_its_option(given):
    """The line names the option, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"--alias: .* is not allowed: NAME=MODEL"):
        WorkerConfig(instances=(InstanceConfig("a", "http://x"),), alias=(given,))


def test_an_alias_given_twice_is_refused():
    """Two models for one name: nobody could say which."""
    with pytest.raises(ValueError, match="'a' is given twice"):
        Aliases(["a=x", "a=y"])


def test_a_model_may_have_an_equals_sign_in_its_name():
    """The first one separates."""
    assert Aliases(["a=x=y"]).resolve(b'{"model":"a"}', "") == b'{"model":"x=y"}'


ALIASES = Aliases(["gpt=tiny/α", "a\"b=it's"])


@pytest.mark.parametrize(
    ("body", "resolved"),
    [
        (b'{"model":"gpt"}', '{"model":"tiny/α"}'.encode()),
        (
            b' { "stream" : true ,\n"model"\t:\r\n "gpt" , "n":1.50}',
            ' { "stream" : true ,\n"model"\t:\r\n "tiny/α" , "n":1.50}'.encode(),
        ),
        (b'{"\\u006dodel":"g\\u0070t"}', '{"\\u006dodel":"tiny/α"}'.encode()),
        (b'{"model":"a\\"b"}', b'{"model":"it\'s"}'),
        (b'{"model":"gpt","model":"gpt"}', '{"model":"tiny/α","model":"tiny/α"}'.encode()),
        (b'{"x":"\\"model\\":\\"gpt\\"","model":"gpt"}', '{"x":"\\"model\\":\\"gpt\\"","model":"tiny/α"}'.encode()),
    ],
)
def test_only_the_model_of_the_outermost_object_is_replaced(body, resolved):
    """However it is written; not a byte beside it is touched."""
    assert ALIASES.resolve(body, "application/json") == resolved


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"gpt",
        b'"model":"gpt"',
        b'[{"model":"gpt"}]',
        b'{"model":"gpt-4"}',
        b'{"model":["gpt"]}',
        b'{"model":{"model":"gpt"}}',
        b'{"messages":[{"role":"user","model":"gpt","content":"{\\"model\\":\\"gpt\\"}"}],"model":"other"}',
        b'{"x":"model","y":"gpt"}',
        b'{"model":"\xff"}',
        b'{"model":"unfinished',
    ],
)
def test_every_other_body_stays_as_it_is(body):
    """Names elsewhere in a body, other models, and what is no request at all."""
    assert ALIASES.resolve(body, "application/json") is body


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6) | st.just("gpt"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("model"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=4) | st.just("model"), VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_a_json_body_means_the_same_but_for_its_model(fields, is_ascii, indent):
    """Parsed again, it is the same object with the engine's name in place of the alias."""
    body = json.dumps(fields, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    expected = {**fields, "model": "tiny/α"} if fields.get("model") == "gpt" else fields
    assert json.loads(ALIASES.resolve(body, "application/json")) == expected


@given(st.binary(max_size=60))
def test_no_body_raises(rubbish):
    """Whatever bytes a client sends."""
    ALIASES.resolve(b'{"model":' + rubbish, "application/json")
    ALIASES.resolve(rubbish, "multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    "piece",
    [b'"",', b"[],", b"{},", b'"[",', b'"\\"]",', b'"\\\\",', b'{"model":"gpt"},', b'"model",', b'"\\u006d",'],
)
def test_what_stands_before_a_model_costs_no_calls(piece):
    """As many as a small body's for each 64 KiB, or each key of that name; and the model is found."""
    body = b'{"x":[%b0],"model":"gpt"}'
    few, many = body % (piece * 20), body % (piece * 100_000)
    assert ALIASES.resolve(few, "application/json").endswith('0],"model":"tiny/α"}'.encode())
    assert Calls.of(ALIASES.resolve, many, "application/json") < 20_000
    assert peak_bytes(ALIASES.resolve, many, "application/json") < 3 * len(many) + 2**20


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"model":"' + b'\\"' * 100_000, b'{"model":"' * 50_000])
def test_a_body_that_never_ends_is_left_as_it_is(body):
    """It is read once, and not once for each quote in it."""
    assert ALIASES.resolve(body, "application/json") is body
    assert peak_bytes(ALIASES.resolve, body, "application/json") < 3 * len(body) + 2**20


def test_a_form_of_many_parts_costs_no_calls():
    """Only the parts that a proxy would look at."""
    content_type = "multipart/form-data; boundary=B"
    assert Calls.of(ALIASES.resolve, b"--B\r\n\r\n\r\n" * 100_000, content_type) < 1000


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
    b'RIFF\r\n\r\ngpt\r\n--Bogus name="model"\r\n'
    b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--B\r\nContent-Disposition: form-data; name="language"\r\n\r\ngpt\r\n--B--\r\n'
)


def test_the_model_of_a_form_is_replaced():
    """As audio uploads carry it; the file that is sent with it stays as it is."""
    for content_type in ("multipart/form-data; boundary=B", 'Multipart/Form-Data; charset=utf-8; boundary="B"'):
        assert ALIASES.resolve(FORM % b"gpt", content_type) == FORM % "tiny/α".encode()
        assert ALIASES.resolve(FORM % b"other", content_type) == FORM % b"other"
    assert ALIASES.resolve(FORM % b"gpt", "multipart/form-data") == FORM % b"gpt"


def test_a_worker_without_aliases_looks_at_no_body():
    """What nobody asked for costs nothing."""
    body = msgspec.json.encode({"model": "gpt"})
    assert Aliases([]).resolve(body, "application/json") is body
