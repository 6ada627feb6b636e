import asyncio

import openai
import pytest

from tests.processes.fleet import Fleet, until

pytestmark = pytest.mark.processes

HELLO = [{"role": "user", "content": "What does a forebay do?"}]
LONG = 20_000
"""Tokens of an answer that takes far longer than any test waits."""


@pytest.fixture(scope="module")
def fleet(start_fleet) -> Fleet:
    """Give two instances and two replicas."""
    return start_fleet(engine=["--speed", "2"])


@pytest.fixture
def client(fleet):
    """Give the official client, which knows nothing of Forebay, without its own retries."""
    with openai.OpenAI(base_url=f"{fleet.replicas[0].url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(fleet):
    """Give the official asynchronous client, for what is cancelled."""
    async with openai.AsyncOpenAI(base_url=f"{fleet.replicas[1].url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_is_answered(client):
    """A plain chat has its text, its reason and its usage."""
    answer = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=8)
    assert len(answer.choices[0].message.content) == 8 * 4
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8


def test_a_chat_streams(client):
    """A streamed chat brings its tokens, its reason, and no usage that nobody asked for."""
    chunks = list(client.chat.completions.create(model="sim", messages=HELLO, max_tokens=8, stream=True))
    assert len("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == 8 * 4
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_carries_the_usage_that_was_asked_for(client):
    """With include_usage the last chunk has no choices and the usage."""
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=8, stream=True, stream_options=options)
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_completions_are_answered_and_stream(client):
    """The older completions work in both ways."""
    answer = client.completions.create(model="sim", prompt="Once upon a time", max_tokens=5)
    assert len(answer.choices[0].text) == 5 * 4
    chunks = list(client.completions.create(model="sim", prompt="Once upon a time", max_tokens=5, stream=True))
    assert len("".join(chunk.choices[0].text for chunk in chunks if chunk.choices)) == 5 * 4


def test_embeddings_are_answered(client):
    """Each input has its vector."""
    answer = client.embeddings.create(model="sim", input=["one", "two"], encoding_format="float")
    assert [each.index for each in answer.data] == [0, 1]
    assert all(each.embedding for each in answer.data)


def test_responses_are_answered_and_stream(client):
    """The newer responses work in both ways, and a stream ends with the whole response."""
    answer = client.responses.create(model="sim", input="Say something", max_output_tokens=6)
    assert len(answer.output_text) == 6 * 4
    with client.responses.stream(model="sim", input="Say something", max_output_tokens=6) as stream:
        events = [event.type for event in stream]
        assert len(stream.get_final_response().output_text) == 6 * 4
    assert events[0] == "response.created"


def test_models_are_listed_and_retrieved(client):
    """The merged list has each model once, and each can be asked for by its name."""
    assert [model.id for model in client.models.list()] == ["sim"]
    assert client.models.retrieve("sim").id == "sim"


ASK_FOR_NOBODY = {
    "chat": lambda client: client.chat.completions.create(model="nobody", messages=HELLO),
    "stream": lambda client: client.chat.completions.create(model="nobody", messages=HELLO, stream=True),
    "retrieve": lambda client: client.models.retrieve("nobody"),
}


@pytest.mark.parametrize("how", ASK_FOR_NOBODY)
def test_an_unknown_model_is_not_found(client, how):
    """A model that nobody serves is a NotFoundError in OpenAI's shape."""
    with pytest.raises(openai.NotFoundError) as caught:
        ASK_FOR_NOBODY[how](client)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["message"] == "The model `nobody` does not exist."


def test_what_the_engine_rejects_is_rejected(client):
    """The engine's own 400 reaches the client as a BadRequestError with the engine's words."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=-1)
    assert "max_tokens" in caught.value.message


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_times_out_leaves_nothing_running(fleet, client, is_stream):
    """After a timeout of the client the engine runs nothing and every count is back to 0."""
    words = "hay " * (28_000 if is_stream else 10)  # a stream times out while its prompt is read
    messages = [{"role": "user", "content": words}]
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(
            model="sim", messages=messages, max_tokens=2_000, stream=is_stream
        )
    fleet.wait_until_idle()


def is_busy(fleet: Fleet) -> bool:
    """Whether an engine and a worker have something under way."""
    return any(engine.running() for engine in fleet.engines) and any(w.inflight() for w in fleet.workers.values())


async def test_a_cancelled_stream_leaves_nothing_running(fleet, async_client):
    """A client that closes its stream in the middle ends the work on the engine, and every count is back to 0."""
    stream = await async_client.chat.completions.create(model="sim", messages=HELLO, max_tokens=LONG, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert await asyncio.to_thread(until, lambda: is_busy(fleet), "the engine runs it")
    await stream.close()
    await asyncio.to_thread(fleet.wait_until_idle)


async def test_a_cancelled_plain_request_leaves_nothing_running(fleet, async_client):
    """A client that leaves while it waits for a plain answer ends the work on the engine as well."""
    request = asyncio.create_task(async_client.chat.completions.create(model="sim", messages=HELLO, max_tokens=LONG))
    await asyncio.to_thread(until, lambda: is_busy(fleet), "the engine runs it")
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.to_thread(fleet.wait_until_idle)
