"""Several pools behind one proxy: each model is answered by an instance of the pool that serves it."""

import openai
import pytest

from tests.processes.fleet import Fleet, fetch, until

pytestmark = pytest.mark.processes

HELLO = [{"role": "user", "content": "Where does this go?"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Give two pools with a model and an instance each, two names for one of them, and one replica of both."""
    with Fleet(tmp_path_factory.mktemp("pools")) as fleet:
        (chat,) = fleet.start_engines("--model", "chat-8b")
        (code,) = fleet.start_engines("--model", "code-7b", "--model", "code-lora")
        fleet.start_worker("c1", chat, "--pool", "chat", "--alias", "gpt-4o=chat-8b", "--alias", "nobody=absent")
        fleet.start_worker("d1", code, "--pool", "code")
        fleet.start_replica("--pool", "chat", "--pool", "code")
        fleet.wait()
        yield fleet


@pytest.fixture
def client(fleet):
    """Give the official client, without its own retries."""
    with openai.OpenAI(base_url=f"{fleet.replicas[0].url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_all_models_of_all_pools_are_listed(client):
    """Names of both pools, adapters and aliases among them; an alias of what nobody serves is not."""
    names = {"chat-8b", "gpt-4o", "code-7b", "code-lora"}
    listed = until(lambda: (found := {model.id for model in client.models.list()}) >= names and found, names)
    assert listed == names


@pytest.mark.parametrize(
    ("model", "instance", "real"),
    [
        ("chat-8b", "c1", "chat-8b"),
        ("gpt-4o", "c1", "chat-8b"),
        ("code-7b", "d1", "code-7b"),
        ("code-lora", "d1", "code-lora"),
    ],
)
def test_a_request_goes_to_the_pool_that_serves_its_model(client, model, instance, real):
    """Plain and streamed; the engine is asked for its own name, and its answer says that."""
    for _ in range(3):
        answer = client.chat.completions.with_raw_response.create(model=model, messages=HELLO, max_tokens=2)
        assert answer.headers["x-forebay-instance"] == instance
        assert answer.parse().model == real
        stream = list(client.chat.completions.create(model=model, messages=HELLO, max_tokens=2, stream=True))
        assert {chunk.model for chunk in stream} == {real}


def test_a_model_of_no_pool_is_not_found(client):
    """An alias whose model no engine serves is as unknown as any other name."""
    for name in ("nobody", "absent"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model=name, messages=HELLO)


def test_the_debug_page_tells_both_pools(fleet):
    """Every instance with its pool and models; nothing is left in flight or in transit."""
    loads = fleet.replicas[0].loads()
    assert {name: load["pool"] for name, load in loads.items()} == {"c1": "chat", "d1": "code"}
    assert fetch(f"{fleet.replicas[0].admin_url}/ready")[0] == 200
    fleet.wait_until_idle()
