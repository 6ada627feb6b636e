"""What a client is told of an engine's error: its own words, in a shape that clients read."""

import msgspec
import pytest


@pytest.mark.parametrize(
    ("status", "kind", "body", "message"),
    [
        ("500 Internal Server Error", "text/plain", b"Internal Server Error", "Internal Server Error"),
        ("502 Bad Gateway", "text/html", b"<html>10.0.0.7 is away</html>", "the engine answered 502"),
        ("404 Not Found", "text/plain", b"", "the engine answered 404"),
        ("500 Internal Server Error", "text/plain", b"\xff" * 5000, "\ufffd" * 1000),
    ],
)
async def test_an_engines_error_that_is_no_json_is_told_in_openais_shape(fleet, status, kind, body, message):
    """The status stays; clients read `error.message`, and break on a page of HTML."""
    await fleet.worker("a", lambda peer, _: peer.answer(body, status=status, kind=kind))
    await fleet.start()
    caller = await fleet.ask()
    assert await caller.head() == int(status[:3])
    assert caller.headers["content-type"] == "application/json"
    error = msgspec.json.decode(await caller.body())["error"]
    assert (error["message"], error["code"]) == (message, "engine_error")


@pytest.mark.parametrize("body", [b'{"detail":[{"msg":"no"}]}', b'{"error":"no"}'])
async def test_an_engines_error_that_is_json_stays_as_it_is(fleet, body):
    """Byte for byte."""
    await fleet.worker("a", lambda peer, _: peer.answer(body, status="422 Unprocessable"))
    await fleet.start()
    assert await (await fleet.ask()).answer() == (422, body)
