"""Streams: the events vLLM 0.32.0 was recorded to send, in their order."""

import asyncio
import json
from urllib.parse import urlsplit

import openai
import pytest

from .conftest import FROZEN, chat, events_of
from .test_surface import shape

CHAT = "/v1/chat/completions"


async def stream(client, url: str, body: dict) -> list[bytes]:
    """The data of every event."""
    async with client.post(url, json={**body, "stream": True}) as response:
        assert response.status == 200
        return events_of(await response.read())


def shapes(events) -> list[object]:
    """What each event looks like."""
    return [event if event == "[DONE]" else shape(json.loads(event)) for event in events]


USAGE = {"include_usage": True}


@pytest.mark.parametrize(
    ("title", "path", "body", "first", "last"),
    [
        ("STREAM plain", CHAT, chat(20), 3, 2),
        ("STREAM include_usage", CHAT, chat(20, stream_options=USAGE), 3, 3),
        ("STREAM continuous_usage_stats", CHAT, chat(6, stream_options=USAGE | {"continuous_usage_stats": True}), 4, 4),
        ("STREAM n=2", CHAT, chat(4, n=2), 11, 0),
        ("STREAM completions", "/v1/completions", {"prompt": "hi", "max_tokens": 3, "stream_options": USAGE}, 5, 0),
    ],
)
async def test_events_have_the_recorded_shape_and_order(title, path, body, first, last, recorded, start_engine, client):
    """The recorded beginning and end of a stream, key by key (recordings of long streams lack their middle)."""
    engine = await start_engine()
    said = [event.decode() for event in await stream(client, engine.url + path, body)]
    expected = shapes(event.removeprefix("data: ") for event in recorded[title].events)
    told = shapes(said)
    assert told[:first] == expected[:first]
    assert told[len(told) - last :] == expected[len(expected) - last :]


async def test_headers_of_a_stream_are_those_of_vllm(recorded, start_engine, client):
    """Content type with its charset, and chunks."""
    engine = await start_engine()
    async with client.post(engine.url + CHAT, json=chat(stream=True)) as response:
        for name in ("content-type", "server", "vary", "transfer-encoding"):
            assert response.headers[name] == recorded["STREAM plain"].headers[name]


async def test_headers_leave_before_the_request_is_admitted(start_engine, client):
    """On an engine whose first step takes seconds, the status of a stream is there at once."""
    engine = await start_engine(batching=FROZEN)
    async with client.post(engine.url + CHAT, json=chat(stream=True)) as response:
        assert response.status == 200
        assert engine.counters.steps == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
@pytest.mark.parametrize("tokens_per_chunk", [1, 3, 100])
async def test_tokens_are_exact_however_many_share_an_event(max_tokens, tokens_per_chunk, start_engine, client):
    """The first token comes alone, then each event carries its share, the last one the rest."""
    engine = await start_engine(tokens_per_chunk=tokens_per_chunk)
    events = await stream(client, engine.url + CHAT, chat(max_tokens, stream_options=USAGE))
    told = [json.loads(event) for event in events[:-1]]
    contents = [event["choices"][0]["delta"]["content"] for event in told[:-1]]
    sizes = [len(content) // 4 for content in contents]
    rest = max_tokens - 1
    expected = [tokens_per_chunk] * (rest // tokens_per_chunk) + [rest % tokens_per_chunk] * (
        rest % tokens_per_chunk > 0
    )
    assert sizes == [0, 1, *expected]
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["completion_tokens"] == max_tokens
    assert [event["choices"][0]["finish_reason"] for event in told[:-1]] == [None] * (len(sizes) - 1) + ["length"]


async def test_a_streamed_response_has_the_recorded_events(recorded_with_key, start_engine, client):
    """Names and shapes of the Responses API's events, numbered without a gap (the recording lacks its middle)."""
    engine = await start_engine()
    body = {"input": "hi there", "max_output_tokens": 2, "stream": True}
    async with client.post(engine.url + "/v1/responses", json=body) as response:
        lines = (await response.text()).splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    kept = recorded_with_key["/v1/responses stream"]
    recorded_data = [json.loads(event[6:]) for event in kept.events if event.endswith("}")]
    assert names == [event["type"] for event in data]
    assert [event["sequence_number"] for event in data] == list(range(10))
    assert [shape(event) for event in data[:7]] == [shape(event) for event in recorded_data[:7]]
    assert shape(data[9]) == shape(recorded_data[-1])
    assert names[7:] == ["response.content_part.done", "response.output_item.done", "response.completed"]


async def test_a_refused_stream_is_200_with_an_error_event_and_done(recorded_with_key, start_engine, client):
    """With its queue full, vLLM answers 503 to a plain request and tells a stream in its first event."""
    refused = recorded_with_key["30 at once with the queue limit: {200: 20, 503: 10}"]
    model = type(FROZEN)(max_num_seqs=1, queue_limit=1, speed=0.001, max_model_len=2048)
    engine = await start_engine(batching=model)
    url = engine.url + CHAT
    async with client.post(url, json=chat(stream=True)), client.post(url, json=chat(stream=True)):
        # Both have their headers; what follows is refused as soon as the engine holds the two of them.
        assert engine.steps.batcher.running + engine.steps.batcher.waiting == 2
        async with client.post(url, json=chat()) as response:
            body = await response.text()
            assert response.status == refused.status
        assert await stream(client, url, chat()) == [body.encode(), b"[DONE]"]
    assert engine.counters.rejected == 2
    assert body == refused.body


async def test_a_client_of_http_1_0_gets_its_stream_without_chunks(start_engine):
    """Balancers that speak 1.0 to their upstreams read until the connection ends."""
    engine = await start_engine()
    target = urlsplit(engine.url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    body = json.dumps(chat(3, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert events_of(rest)[-1] == b"[DONE]"
    assert all(part.startswith((b"{", b"[DONE]")) for part in events_of(rest))
    writer.close()
    await writer.wait_closed()


async def test_the_openai_client_understands_everything(start_engine):
    """The official client reads chats, streams, completions, responses, embeddings, models and errors."""
    engine = await start_engine()
    async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as api:
        whole = await api.chat.completions.create(model="tiny", messages=chat()["messages"], max_tokens=5)
        text = ""
        async for chunk in await api.chat.completions.create(
            model="tiny", messages=chat()["messages"], max_tokens=5, stream=True, stream_options=USAGE
        ):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage
        assert text == whole.choices[0].message.content
        assert usage.completion_tokens == whole.usage.completion_tokens == 5
        said = ""
        async with api.responses.stream(model="tiny", input="hi there", max_output_tokens=5) as events:
            async for event in events:
                said += event.delta if event.type == "response.output_text.delta" else ""
        assert said == (await api.responses.create(model="tiny", input="hi there", max_output_tokens=5)).output_text
        assert len((await api.embeddings.create(model="tiny", input="hi")).data[0].embedding) == 64
        assert [model.id async for model in api.models.list()] == ["tiny", "tiny-alias"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await api.completions.create(model="nope", prompt="hi")
