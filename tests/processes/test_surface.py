import asyncio
import signal

import aiohttp
import pytest

from tests.processes.fleet import Fleet, until
from tests.servers import everything_on

pytestmark = pytest.mark.processes

PROMPT = "zinnia-quagga-4711"
ENGINE_KEY = "sk-engine-0815"
CLIENT_KEY = "sk-client-2342"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def fleet(start_fleet, tmp_path_factory) -> Fleet:
    """Give two instances of the model sim, whose engines ask for a key, and one of the model other."""
    key_file = tmp_path_factory.mktemp("keys") / "engine-key"
    key_file.write_text(f"{ENGINE_KEY}\n")
    fleet = start_fleet(engine=["--speed", "20", "--api-key", ENGINE_KEY], worker=["--engine-key-file", str(key_file)])
    (engine,) = fleet.start_engines("--model", "other", "--speed", "20")
    fleet.start_worker("i3", engine)
    fleet.wait()
    return fleet


@pytest.fixture
def url(fleet) -> str:
    """Give the URL of one replica."""
    return fleet.replicas[0].url


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str | None]:
    """Give status and code of an error in OpenAI's shape."""
    error = (await answer.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status, error["code"]


async def test_models_of_all_instances_are_merged(http, url):
    """Each model is listed once, whoever serves it."""
    async with http.get(f"{url}/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["other", "sim"]


async def test_a_model_goes_only_to_those_that_serve_it(http, url):
    """Ten requests for a model that one instance serves all go there."""
    for _ in range(10):
        async with http.post(f"{url}{PATH}", json={**CHAT, "model": "other"}) as answer:
            assert (answer.status, answer.headers["x-forebay-instance"]) == (200, "i3")


async def test_an_unknown_model_is_404(http, url):
    """A model that nobody has served is not found, in OpenAI's shape."""
    async with http.post(f"{url}{PATH}", json={**CHAT, "model": "nobody"}) as answer:
        assert await error_of(answer) == (404, "model_not_found")


async def test_a_missing_model_is_asked_for_where_there_are_several(http, url):
    """Without a model the request cannot be routed, and the answer says what there is."""
    body = {key: value for key, value in CHAT.items() if key != "model"}
    async with http.post(f"{url}{PATH}", json=body) as answer:
        assert answer.status == 400
        assert "other, sim" in (await answer.json())["error"]["message"]


async def test_the_model_of_a_multipart_body_decides(http, url):
    """An upload goes to an instance of the model it names, and the engine's answer comes back."""
    path = "/v1/audio/transcriptions"
    for model, status, instance in (("other", 404, "i3"), ("nobody", 404, None)):
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF" + bytes(5000), filename="a.wav", content_type="audio/wav")
        form.add_field("model", model)
        async with http.post(f"{url}{path}", data=form) as answer:
            assert (answer.status, answer.headers.get("x-forebay-instance")) == (status, instance)
            assert ("detail" in await answer.json()) is (instance is not None)  # a simulated engine hears nothing


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/files"),
        ("GET", "/v1/batches"),
    ],
)
async def test_what_only_its_maker_knows_is_501_among_several(http, url, method, path):
    """A path that needs the instance which made something is refused while there are several."""
    async with http.request(method, f"{url}{path}") as answer:
        assert await error_of(answer) == (501, "not_implemented")


async def test_unknown_paths(http, url):
    """Outside /v1 there is nothing, below it the engine decides; debug pages are not on the API port."""
    for path in ("/", "/v2/models", "/debug/instance_loads", "/metrics"):
        async with http.get(f"{url}{path}") as answer:
            assert await error_of(answer) == (404, "not_found")
    async with http.post(f"{url}/v1/nothing", json={"model": "sim"}) as answer:
        assert answer.status == 404
        assert answer.headers["x-forebay-instance"] in {"i1", "i2"}
        assert await answer.json() == {"detail": "Not Found"}


async def test_a_websocket_is_501(http, url):
    """An upgrade is refused with a reason."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect(f"{url}/v1/realtime")
    assert caught.value.status == 501


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_400(http, url, body):
    """What cannot be read cannot be routed."""
    async with http.post(f"{url}{PATH}", data=body, headers={"content-type": "application/json"}) as answer:
        assert await error_of(answer) == (400, None)


async def test_headers_name_the_request_and_the_instance(http, url):
    """A client's request id is kept, a missing or an impossible one is replaced; the instance is named."""
    async with http.post(f"{url}{PATH}", json=CHAT, headers={"x-request-id": "mine-1"}) as answer:
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.headers["x-forebay-instance"] in {"i1", "i2"}
        assert (await answer.json())["id"] == "chatcmpl-mine-1"
    for given in ({}, {"x-request-id": "two words"}, {"x-request-id": "x" * 200}):
        async with http.post(f"{url}{PATH}", json=CHAT, headers=given) as answer:
            made = answer.headers["x-request-id"]
            assert len(made) == 32
            assert (await answer.json())["id"] == f"chatcmpl-{made}"
    async with http.get(f"{url}/nothing", headers={"x-request-id": "mine-2"}) as answer:
        assert answer.headers["x-request-id"] == "mine-2"


async def test_the_access_log_tells_every_request(http, fleet):
    """One JSON line a request: id, instance, time to first token, and how it ended."""
    replica = fleet.replicas[1]
    for name, body in (("log-1", {**CHAT, "stream": True}), ("log-2", CHAT), ("log-3", {**CHAT, "model": "nobody"})):
        async with http.post(f"{replica.url}{PATH}", json=body, headers={"x-request-id": name}) as answer:
            await answer.read()
    lines = await asyncio.to_thread(
        until, lambda: (found := {each["request_id"]: each for each in replica.lines()}).get("log-3") and found, "lines"
    )
    for name in ("log-1", "log-2"):
        line = lines[name]
        assert line["status"] == 200
        assert line["instance"] in {"i1", "i2"}
        assert line["model"] == "sim"
        assert 0 < line["ttft_ms"] <= line["total_ms"] + 0.1
        assert line["tries"] == 1
    assert (lines["log-3"]["status"], lines["log-3"]["outcome"]) == (404, "rejected")
    assert "instance" not in lines["log-3"]


async def test_nothing_a_client_said_and_no_key_is_written_down(http, fleet):
    """Prompts, the engines' key and the client's key are in no log of any process, and nowhere on the bus."""
    engine = fleet.engines[0]
    async with http.post(f"{engine.url}{PATH}", json=CHAT) as answer:
        assert answer.status == 401, "the engine asks for its key"
    headers = {"authorization": f"Bearer {CLIENT_KEY}"}
    engine.fault("error_500", count=2)  # a failure is where texts like to slip out
    for replica in fleet.replicas:
        for extra in ({}, {"stream": True}, {"messages": PROMPT}, {"model": [PROMPT]}):
            async with http.post(f"{replica.url}{PATH}", json={**CHAT, **extra}, headers=headers) as answer:
                assert answer.status in {200, 400}
                await answer.read()
    await asyncio.to_thread(fleet.wait_until_idle)
    for part in fleet.parts:
        for secret in (PROMPT, ENGINE_KEY, CLIENT_KEY):
            assert secret not in part.text, part.name
    held = await everything_on(fleet.bus.url)
    assert not any(secret in held for secret in (PROMPT, ENGINE_KEY, CLIENT_KEY))
    for replica in fleet.replicas:
        for page in ("instance_loads", "selections"):
            async with http.get(f"{replica.admin_url}/debug/{page}") as answer:
                assert PROMPT not in await answer.text()


async def test_a_model_whose_last_instance_left_is_503(http, fleet):
    """What was served lately and is not alive now is unavailable, not unknown; it comes back with its instance."""
    leaving = fleet.workers["i3"]
    leaving.signal(signal.SIGTERM)
    assert await asyncio.to_thread(leaving.status) == 0
    for replica in fleet.replicas:
        await asyncio.to_thread(until, lambda r=replica: "i3" not in r.loads(), f"{replica.name} forgets it")
        async with http.post(f"{replica.url}{PATH}", json={**CHAT, "model": "other"}) as answer:
            assert await error_of(answer) == (503, "no_live_instance")
            assert answer.headers["retry-after"]
        async with http.get(f"{replica.url}/v1/models/other") as answer:
            assert answer.status == 404
    fleet.start_worker("i3", leaving.engine)
    await asyncio.to_thread(fleet.wait)
    async with http.post(f"{fleet.replicas[1].url}{PATH}", json={**CHAT, "model": "other"}) as answer:
        assert answer.status == 200
