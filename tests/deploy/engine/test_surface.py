"""The simulated engine answers as vLLM 0.32.0 was recorded to answer."""

import base64
import json
import re
import struct

import pytest

from deploy.engine.batching import EngineModel

from .conftest import FAST, chat

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi there"}]
LONG = [{"role": "user", "content": "x" * 4 * 2048}]
HEADERS = ("server", "content-type", "vary", "allow")

REFUSED = {
    "BAD: invalid JSON": b'{"model": "tiny", "messages": [',
    "BAD: empty body": b"",
    "BAD: JSON but not an object": b"[1, 2]",
    "BAD: unknown model": {"model": "nope", "messages": MESSAGES},
    "BAD: unknown model, stream": {"model": "nope", "messages": MESSAGES, "stream": True},
    "BAD: messages missing": {"model": "tiny"},
    "BAD: messages empty": {"model": "tiny", "messages": []},
    "BAD: messages wrong type": {"model": "tiny", "messages": "hi"},
    "BAD: too long prompt": {"model": "tiny", "messages": LONG},
    "BAD: too long prompt, stream": {"model": "tiny", "messages": LONG, "stream": True},
    "BAD: prompt + max_tokens over the context": chat(5000),
    "BAD: max_tokens 0": chat(0),
    "BAD: max_tokens -1": chat(-1),
    "BAD: max_tokens a string": chat(max_tokens="abc"),
    "BAD: temperature -1": chat(temperature=-1),
    "BAD: top_p 2": chat(top_p=2),
    "BAD: stream_options without stream": chat(stream_options={"include_usage": True}),
    "BAD: n 0": chat(n=0),
    "BAD: null bytes / lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
}


def shape(value: object) -> object:
    """A JSON value with its keys, in order, and the types of its leaves."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def expect_same_headers(response, recorded) -> None:
    """The headers that a gateway acts on are those of the recording."""
    for name in HEADERS:
        assert response.headers.get(name) == recorded.headers.get(name), name


@pytest.mark.parametrize("title", REFUSED)
async def test_refusals_are_byte_for_byte_those_of_vllm(title, recorded, start_engine, client):
    """Status, headers and body of an error are the recorded ones."""
    engine = await start_engine()
    asked = REFUSED[title]
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    headers = {"content-type": "application/json"}
    async with client.post(engine.url + CHAT, data=body, headers=headers) as response:
        assert response.status == recorded[title].status
        assert await response.text() == recorded[title].body
        expect_same_headers(response, recorded[title])


async def test_a_body_that_does_not_call_itself_json_is_refused(recorded, start_engine, client):
    """VLLM looks at the content type before it looks at the body."""
    engine = await start_engine()
    async with client.post(engine.url + CHAT, data=b"{}", headers={"content-type": "text/plain"}) as response:
        assert response.status == recorded["BAD: wrong content-type"].status
        assert await response.text() == recorded["BAD: wrong content-type"].body


@pytest.mark.parametrize(
    ("title", "path"),
    [
        ("GET /health", "/health"),
        ("GET /version", "/version"),
        ("GET /load", "/load"),
        ("GET /nonexistent", "/nonexistent"),
        ("GET on a POST route", CHAT),
    ],
)
async def test_small_pages_are_those_of_vllm(title, path, recorded, start_engine, client):
    """Status, headers and body of pages without state are the recorded ones."""
    engine = await start_engine()
    async with client.get(engine.url + path) as response:
        assert response.status == recorded[title].status
        assert await response.text() == recorded[title].body
        expect_same_headers(response, recorded[title])


async def test_models_have_the_recorded_shape(recorded, start_engine, client):
    """Both models are listed with the context length that a gateway may read."""
    engine = await start_engine()
    async with client.get(engine.url + "/v1/models") as response:
        told = await response.json()
    assert shape(told) == shape(json.loads(recorded["GET /v1/models"].body))
    assert [model["max_model_len"] for model in told["data"]] == [2048, 2048]


@pytest.mark.parametrize(
    ("title", "path", "body"),
    [
        ("chat non-stream", CHAT, chat(8)),
        ("chat non-stream", CHAT, chat(None, max_completion_tokens=8)),
        ("completion non-stream", "/v1/completions", {"prompt": "hi there", "max_tokens": 8}),
    ],
)
async def test_plain_answers_have_the_recorded_shape(title, path, body, recorded, start_engine, client):
    """The keys, their order and the types of a whole answer are the recorded ones, and its usage is exact."""
    engine = await start_engine()
    async with client.post(engine.url + path, json=body) as response:
        told = await response.json()
        expect_same_headers(response, recorded[title])
    assert shape(told) == shape(json.loads(recorded[title].body))
    assert told["usage"]["prompt_tokens"] == 2
    assert told["usage"]["completion_tokens"] == 8
    assert told["usage"]["total_tokens"] == 10
    assert told["choices"][0]["finish_reason"] == "length"


async def test_a_plain_response_has_the_recorded_shape(recorded_with_key, start_engine, client):
    """The Responses API, cut by its limit."""
    engine = await start_engine()
    body = {"input": [{"role": "user", "content": "hi there"}], "max_output_tokens": 4}
    async with client.post(engine.url + "/v1/responses", json=body) as response:
        told = await response.json()
    assert shape(told) == shape(json.loads(recorded_with_key["/v1/responses"].body))
    assert (told["status"], told["usage"]["output_tokens"]) == ("incomplete", 4)


async def test_the_request_id_becomes_part_of_the_answers_id(recorded, start_engine, client):
    """X-Request-Id: abc is answered as chatcmpl-abc, and without one the id is as long as vLLM's."""
    engine = await start_engine()
    async with client.post(engine.url + CHAT, json=chat(), headers={"x-request-id": "my-req-id-123"}) as response:
        told = await response.json()
    assert told["id"] == json.loads(recorded["chat non-stream, X-Request-Id"].body)["id"]
    async with client.post(engine.url + CHAT, json=chat()) as response:
        assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", (await response.json())["id"])


@pytest.mark.parametrize(
    ("title", "method", "path", "headers"),
    [
        ("no key, GET /v1/models", "GET", "/v1/models", {}),
        ("no key, chat", "POST", CHAT, {}),
        ("wrong key, chat", "POST", CHAT, {"authorization": "Bearer wröng"}),
        ("no key, /health", "GET", "/health", {}),
    ],
)
async def test_a_key_guards_v1_only(title, method, path, headers, recorded_with_key, start_engine, client):
    """Without the key /v1 is 401 with an error that is a string; /health stays open."""
    engine = await start_engine(api_key="secret")
    async with client.request(method, engine.url + path, headers=headers) as response:
        assert response.status == recorded_with_key[title].status
        assert await response.text() == recorded_with_key[title].body


async def test_the_right_key_opens(start_engine, client):
    """With the key the engine answers."""
    engine = await start_engine(api_key="secret")
    headers = {"authorization": "Bearer secret"}
    async with client.post(engine.url + CHAT, json=chat(), headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("hi there", 2), ("", 1), ([1, 2, 3], 3), ([[1, 2, 3], [4]], 4), (["hi there", "you"], 3), ("ää", 1)],
)
async def test_prompts_count_four_bytes_a_token_and_ids_exactly(prompt, tokens, start_engine, client):
    """A text of n bytes has n / 4 tokens, rounded up and at least one; token ids count one each."""
    engine = await start_engine()
    body = {"prompt": prompt, "max_tokens": 2}
    async with client.post(engine.url + "/v1/completions", json=body) as response:
        usage = (await response.json())["usage"]
    assert usage["prompt_tokens"] == tokens


async def test_every_prompt_is_answered_n_times(start_engine, client):
    """Two prompts with n = 2 give four answers, all different, each of the asked length."""
    engine = await start_engine()
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 5}
    async with client.post(engine.url + "/v1/completions", json=body) as response:
        told = await response.json()
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in told["choices"]}) == 4
    assert {len(choice["text"]) for choice in told["choices"]} == {20}
    assert told["usage"]["completion_tokens"] == 20


async def test_embeddings_come_as_numbers_and_as_base64(start_engine, client):
    """One vector a prompt, the same in both encodings."""
    engine = await start_engine()
    url = engine.url + "/v1/embeddings"
    async with client.post(url, json={"input": ["one", "two"]}) as response:
        numbers = (await response.json())["data"]
    async with client.post(url, json={"input": "two", "encoding_format": "base64"}) as response:
        packed = base64.b64decode((await response.json())["data"][0]["embedding"])
    assert len(numbers) == 2
    assert list(struct.unpack("<64f", packed)) == pytest.approx(numbers[1]["embedding"])


async def test_the_same_seed_says_the_same_streamed_or_not(start_engine, client):
    """Texts and drawn lengths depend on the seed and the prompt, and on nothing else."""
    one, same, other = [await start_engine(seed=seed) for seed in (7, 7, 8)]
    texts = []
    for engine in (one, same, other):
        async with client.post(engine.url + CHAT, json=chat(None)) as response:
            texts.append((await response.json())["choices"][0]["message"]["content"])
    streamed = ""
    async with client.post(one.url + CHAT, json=chat(None, stream=True)) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                streamed += json.loads(line[6:])["choices"][0]["delta"]["content"]
    assert texts[0] == texts[1] == streamed
    assert texts[0] != texts[2]


async def test_an_answer_without_a_limit_ends_by_itself_and_never_leaves_the_context(start_engine, client):
    """Its length is drawn and cut to the room the prompt leaves; it says stop."""
    model = EngineModel(speed=50.0, max_model_len=16)
    engine = await start_engine(batching=model, mean_output_tokens=1e6)
    async with client.post(engine.url + CHAT, json=chat(None)) as response:
        told = await response.json()
    assert told["usage"]["completion_tokens"] == 14
    assert told["choices"][0]["finish_reason"] == "stop"


async def test_a_completion_without_a_limit_has_sixteen_tokens(start_engine, client):
    """OpenAI's default for completions, which vLLM keeps."""
    engine = await start_engine(batching=FAST)
    async with client.post(engine.url + "/v1/completions", json={"prompt": "hi"}) as response:
        assert (await response.json())["usage"]["completion_tokens"] == 16
