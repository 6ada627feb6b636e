"""The API surface of a replica: which path means what, and every error in OpenAI's shape."""

import gzip

import msgspec
import pytest

from bus.reader import Reader
from tests.hop.scripted import Asked, Peer, head_of, until
from tests.proxy.conftest import BODY, CHAT

ANSWER = b'{"object":"answer"}'


def plain(peer: Peer, _: Asked) -> None:
    """A worker that answers."""
    peer.answer(ANSWER)


def error(body: bytes) -> dict[str, object]:
    """The error of an answer; it has every field."""
    found = msgspec.json.decode(body)["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    return found


async def test_models_are_merged_over_the_live_instances(fleet):
    """Each once, in order; and each by itself, also one with a slash in its name."""
    await fleet.worker("a", plain, models=("tiny", "org/big"))
    await fleet.worker("b", plain, models=("tiny",))
    await fleet.start()
    status, page = await fleet.get("/v1/models")
    assert (status, page["object"], [model["id"] for model in page["data"]]) == (200, "list", ["org/big", "tiny"])
    for path in ("/v1/models/tiny", "/v1/models/org/big", "/v1/models/org%2Fbig"):
        status, model = await fleet.get(path)
        assert (status, model["object"]) == (200, "model")
        assert model in page["data"]
    status, _ = await fleet.get("/v1/models/other")
    assert status == 404


async def test_an_unknown_model_is_a_404(fleet):
    """Nobody has served it lately."""
    await fleet.worker("a", plain)
    await fleet.start()
    status, body = await (await fleet.ask(b'{"model":"other"}')).answer()
    found = error(body)
    assert (status, found["code"], found["param"], found["type"]) == (
        404,
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert "other" in found["message"]


async def test_a_model_that_was_served_lately_is_a_503(fleet):
    """It may come back: Retry-After says so."""
    worker = await fleet.worker("a", plain)
    await fleet.worker("b", plain, models=("other",))
    await fleet.start()
    await worker.leave()
    caller = await fleet.ask()
    await until(lambda: "tiny" not in fleet.replica.selection.models())
    caller = await fleet.ask()
    status, body = await caller.answer()
    assert (status, error(body)["code"], caller.headers["retry-after"]) == (503, "no_live_instance", "1")


async def test_a_draining_instance_takes_nothing_new(fleet):
    """The other one answers."""
    worker = await fleet.worker("a", plain, inflight=0)
    await fleet.worker("b", plain, inflight=9)
    worker.registration = msgspec.structs.replace(worker.registration, state="draining")
    worker.publisher.announce()
    await worker.publisher.publish_now()
    await fleet.start()
    caller = await fleet.ask()
    await caller.answer()
    assert caller.headers["x-forebay-instance"] == "b"


async def test_a_request_without_a_model_means_the_only_one(fleet):
    """With two the client has to say which."""
    await fleet.worker("a", plain)
    await fleet.start()
    assert await (await fleet.ask(b"{}")).answer() == (200, ANSWER)


async def test_a_request_without_a_model_is_a_400_where_there_are_several(fleet):
    """It names the field."""
    await fleet.worker("a", plain, models=("tiny", "big"))
    await fleet.start()
    status, body = await (await fleet.ask(b"{}")).answer()
    assert (status, error(body)["param"]) == (400, "model")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":1}', b"\xff\xfe"])
async def test_a_body_that_cannot_be_routed_is_a_400(fleet, body):
    """No worker sees it."""
    worker = await fleet.worker("a", plain)
    await fleet.start()
    status, answer = await (await fleet.ask(body)).answer()
    assert (status, error(answer)["type"]) == (400, "invalid_request_error")
    assert not worker.asked
    assert fleet.lines[-1].outcome == "rejected"


async def test_a_body_above_the_limit_is_a_413(fleet):
    """In OpenAI's shape, too."""
    await fleet.worker("a", plain)
    await fleet.start(body_limit_mb=1)
    status, body = await (await fleet.ask(b'{"model":"tiny","x":"' + b"x" * 2_000_000 + b'"}')).answer()
    assert (status, error(body)["code"]) == (413, "request_too_large")


async def test_a_compressed_body_is_read_and_sent_on_as_it_means(fleet):
    """It has to be looked into; the worker gets it plain, and no header says otherwise."""
    worker = await fleet.worker("a", plain)
    await fleet.start()
    caller = await fleet.ask(gzip.compress(BODY), content_encoding="gzip")
    assert await caller.answer() == (200, ANSWER)
    assert worker.asked[0].body == BODY
    assert "content-encoding" not in worker.asked[0].headers


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(fleet):
    """Else it waits, as curl does for a second, before every large body."""
    await fleet.worker("a", plain)
    await fleet.start()
    caller = await fleet.callers.dial(fleet.url)
    caller.say(head_of("POST", CHAT, len(BODY), {"expect": "100-continue"}))
    assert await caller.head() == 100
    caller.say(BODY)
    assert await caller.answer() == (200, ANSWER)


async def test_any_other_path_of_the_api_is_passed_through(fleet):
    """Whatever the method; the path is not looked into."""
    worker = await fleet.worker("a", plain)
    await fleet.start()
    assert await (await fleet.ask(b"", path="/v1/new/thing?x=%20y", method="GET")).answer() == (200, ANSWER)
    assert await (await fleet.ask(b'{"model":"tiny"}', path="/v1/rerank")).answer() == (200, ANSWER)
    assert [asked.target for asked in worker.asked] == ["/v1/new/thing?x=%20y", "/v1/rerank"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/load_lora_adapter/",
        "/v1//load_lora_adapter?x=1",
        "/v1/%6Coad_lora%5fadapter",
        "/v1%2Fload_lora_adapter",
        "/v1/load_lora_adapter%2f",
        "/v1/load_lora_adapter#x",
    ],
)
async def test_engines_are_administered_only_where_that_is_allowed(fleet, path):
    """They would do it for the gateway's own key."""
    worker = await fleet.worker("a", plain)
    await fleet.start()
    for method in ("POST", "GET"):
        status, body = await (await fleet.ask(b'{"lora_name":"x"}', path=path, method=method)).answer()
        assert (status, error(body)["code"]) == (403, "admin_path")
    assert not worker.asked


async def test_engines_may_be_administered_through_a_replica_that_is_told_so(fleet):
    """As any other path of theirs."""
    worker = await fleet.worker("a", plain)
    await fleet.start(allow_engine_admin=True)
    assert await (await fleet.ask(b'{"lora_name":"x"}', path="/v1/load_lora_adapter")).answer() == (200, ANSWER)
    assert worker.asked[0].target == "/v1/load_lora_adapter"


async def test_a_stream_that_is_no_boolean_is_a_400(fleet):
    """It names the field."""
    worker = await fleet.worker("a", plain)
    await fleet.start()
    status, body = await (await fleet.ask(b'{"model":"tiny","stream":"true","messages":[]}')).answer()
    assert (status, error(body)["type"], error(body)["param"]) == (400, "invalid_request_error", "stream")
    assert not worker.asked


async def test_a_multipart_body_goes_to_its_model(fleet):
    """Byte for byte."""
    await fleet.worker("a", plain, models=("tiny",))
    whisper = await fleet.worker("b", plain, models=("whisper",))
    await fleet.start()
    body = (
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--xyz--\r\n'
    )
    kind = "multipart/form-data; boundary=xyz"
    caller = await fleet.ask(body, path="/v1/audio/transcriptions", content_type=kind)
    assert await caller.answer() == (200, ANSWER)
    assert (whisper.asked[0].body, whisper.asked[0].headers["content-type"]) == (body, kind)
    for bad in (b"rubbish", b"--xyz\r\nno colon\r\n\r\nx\r\n--xyz--\r\n"):
        caller = await fleet.ask(bad, path="/v1/audio/transcriptions", content_type=kind)
        assert await caller.head() == 400


OWNED = [
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/files"),
    ("POST", "/v1/batches"),
]


@pytest.mark.parametrize(("method", "path"), OWNED)
async def test_what_one_instance_made_is_a_501_where_there_are_several(fleet, method, path):
    """Only its maker could answer."""
    for name in "ab":
        await fleet.worker(name, plain)
    await fleet.start()
    status, body = await (await fleet.ask(b"", path=path, method=method)).answer()
    assert (status, error(body)["code"]) == (501, "not_implemented")


@pytest.mark.parametrize(("method", "path"), OWNED)
async def test_what_one_instance_made_is_found_where_it_is_the_only_one(fleet, method, path):
    """Then it made it."""
    await fleet.worker("a", plain)
    await fleet.start()
    body = b"{}" if method == "POST" else b""
    assert await (await fleet.ask(body, path=path, method=method)).answer() == (200, ANSWER)


async def test_a_new_response_may_be_made_anywhere(fleet):
    """It is made by the request itself."""
    for name in "ab":
        await fleet.worker(name, plain)
    await fleet.start()
    assert await (await fleet.ask(b'{"model":"tiny"}', path="/v1/responses")).answer() == (200, ANSWER)


async def test_a_websocket_is_a_501(fleet):
    """Said before anything is read."""
    await fleet.worker("a", plain)
    await fleet.start()
    caller = await fleet.ask(b"", path="/v1/realtime", method="GET", connection="Upgrade", upgrade="WebSocket")
    status, body = await caller.answer()
    assert (status, error(body)["code"]) == (501, "not_implemented")


@pytest.mark.parametrize("path", ["/", "/v2/x", "/v1", "/metrics", "/debug/selections"])
async def test_any_other_path_is_a_404(fleet, path):
    """The admin pages are not on the API port unless they are asked for."""
    await fleet.worker("a", plain)
    await fleet.start()
    status, body = await (await fleet.ask(b"", path=path, method="GET")).answer()
    assert (status, error(body)["code"]) == (404, "not_found")


async def test_admin_pages_may_be_served_on_the_api_port(fleet):
    """For one machine."""
    await fleet.worker("a", plain)
    await fleet.start(debug_on_main_port=True)
    status, page = await fleet.get("/debug/instance_loads")
    assert (status, [one["id"] for one in page["instances"]]) == (200, ["a"])


async def test_health_and_ready(fleet):
    """Healthy is whoever answers; ready is whoever has read the bus."""
    await fleet.worker("a", plain)
    await fleet.start()
    assert await fleet.get("/health") == (200, {"status": "ok"})
    status, page = await fleet.get("/ready")
    assert (status, page["status"], page["bus"]) == (200, "ready", {"default": "fresh"})


async def test_with_no_bus_at_all_requests_are_503_and_the_replica_is_not_ready(fleet):
    """It says that it has not read the bus; it does not hang."""
    fleet.bus.fall_silent()
    await fleet.start()
    status, _ = await fleet.get("/ready")
    assert status == 503
    assert await (await fleet.ask()).head() == 503
    fleet.bus.speak_again()


async def test_a_bus_that_falls_silent_is_no_fault_of_the_request(fleet):
    """The last view says where to go."""
    await fleet.worker("a", plain)
    await fleet.start()
    fleet.bus.fall_silent()
    for _ in range(3):
        assert (await (await fleet.ask(path=CHAT)).answer())[0] == 200
    fleet.bus.speak_again()


async def test_what_became_of_reservations_is_counted(fleet):
    """A request that its worker refused gives its reservation back, and /metrics says so."""

    def refuse(peer: Peer, _: Asked) -> None:
        peer.answer(b"{}", status="503 Service Unavailable", more="x-forebay-verdict: refused\r\n")

    await fleet.worker("a", refuse)
    await fleet.start()
    assert (await (await fleet.ask()).answer())[0] == 503
    await until(lambda: fleet.replica.selection.reservations["default"].given_back == 1)
    caller = await fleet.callers.ask(f"http://127.0.0.1:{fleet.replica.admin_port}", "/metrics", method="GET")
    _, page = await caller.answer()
    assert b'forebay_reservations_total{outcome="given_back",pool="default"} 1.0' in page


async def test_a_multipart_body_of_endless_depth_is_a_400(fleet):
    """Fifteen hundred levels are no upload."""
    await fleet.worker("a", plain)
    await fleet.start()
    part = b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n"
    body = b"".join(part % (level, level + 1) for level in range(1500))
    caller = await fleet.ask(body, path="/v1/audio/transcriptions", content_type="multipart/form-data; boundary=b0")
    status, answer = await caller.answer()
    assert (status, error(answer)["type"]) == (400, "invalid_request_error")


async def test_a_model_that_may_be_in_a_pool_that_was_never_read_is_not_unknown(fleet, monkeypatch):
    """One node of a cluster is away while a replica starts: come again, not "does not exist"."""
    read = Reader._read

    async def read_but_one(reader: Reader) -> None:
        if reader.pool != "other":
            await read(reader)

    monkeypatch.setattr(Reader, "_read", read_but_one)
    monkeypatch.setattr("proxy.app.FIRST_LOOK_S", 0.05)
    await fleet.worker("a", plain)
    await fleet.start(pool=("default", "other"))
    status, body = await (await fleet.ask(BODY.replace(b"tiny", b"elsewhere"))).answer()
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (503, "no_live_instance")
    assert (await (await fleet.ask()).answer())[0] == 200
