"""The door of an instance: only who knows the secret comes in."""

import logging

import msgspec

from bus.hop.headers import REFUSED, VERDICT
from tests.hop.scripted import Asked, Peer

SECRET = "proxies-know-this-one"  # noqa: S105 - of this test only


def plain(peer: Peer, _: Asked) -> None:
    """An engine that answers."""
    peer.answer(b"{}")


async def test_without_the_secret_a_worker_refuses_everything_but_health(site, tmp_path, caplog):
    """403 in OpenAI's shape, nothing accepted, nothing sent on; logged once, and counted."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    one = await site(plain, secret_file=str(tmp_path / "secret"))
    asked_before = {asked.target for asked in one.engine.asked}
    with caplog.at_level(logging.WARNING, "forebay.worker"):
        for headers in ({}, {"x-forebay-secret": ""}, {"x-forebay-secret": SECRET[:-1]}, {"authorization": SECRET}):
            for path in ("/v1/chat/completions", "/v1/models", "/metrics", "//health", "/health/"):
                caller = await one.ask(path=path, **headers)
                status, body = await caller.answer()
                assert (status, msgspec.json.decode(body)["error"]["code"]) == (403, "invalid_secret")
                assert caller.headers[VERDICT] == REFUSED  # a proxy tries another worker
    assert not one.posts
    assert {asked.target for asked in one.engine.asked} - asked_before <= {"/metrics", "/v1/models"}  # its own watch
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert SECRET not in caplog.text
    assert one.worker._metrics._refused.labels("a")._value.get() == 20
    caller = await one._callers.ask(one.url, "/health", method="GET")
    assert await caller.head() == 200


async def test_with_the_secret_it_serves_and_the_secret_ends_there(site, tmp_path):
    """The engine never sees it."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    one = await site(plain, secret_file=str(tmp_path / "secret"))
    assert await (await one.ask(is_stream=False, **{"x-forebay-secret": SECRET})).head() == 200
    assert "x-forebay-secret" not in one.posts[0].headers


async def test_authorization_is_sent_on_only_where_that_is_configured_and_the_engine_has_no_key(site, tmp_path):
    """An engine's own key wins."""
    (tmp_path / "key").write_text("engine-key\n")
    for settings, arrives in (
        ({}, None),
        ({"forward_authorization": True}, "Bearer client"),
        ({"forward_authorization": True, "engine_key_file": str(tmp_path / "key")}, "Bearer engine-key"),
    ):
        one = await site(plain, **settings)
        assert await (await one.ask(is_stream=False, authorization="Bearer client")).head() == 200
        assert one.posts[0].headers.get("authorization") == arrives


async def test_the_admin_pages_of_a_worker_may_need_a_key(site, tmp_path):
    """Health does not."""
    (tmp_path / "admin").write_text("an-admin-key-0815\n")
    one = await site(plain, admin_key_file=str(tmp_path / "admin"))
    admin = f"http://127.0.0.1:{one.worker.admin_port}"
    for path, status in (("/health", 200), ("/metrics", 401), ("/debug/predictions", 401)):
        assert await (await one._callers.ask(admin, path, method="GET")).head() == status
        headers = {"authorization": "Bearer an-admin-key-0815"}
        assert await (await one._callers.ask(admin, path, method="GET", headers=headers)).head() == 200
