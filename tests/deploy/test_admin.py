import pytest
from aiohttp import web
from click import BadParameter

from deploy.admin import admin_headers, admin_session
from deploy.commands.top import poll

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def guarded():
    """Give a replica whose admin pages want a key."""

    async def page(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        return web.json_response({"replica": "r1", "selections": []})

    app = web.Application()
    app.router.add_get("/debug/{page}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_pages_behind_a_key_are_read_with_it(guarded, tmp_path):
    """The key is the first line of a file; without it the answer is that of the replica, 401."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    async with admin_session(admin_headers(str(tmp_path / "key"))) as session:
        assert (await poll(session, guarded)).loads.replica == "r1"
    async with admin_session(admin_headers("")) as session:
        assert "401" in (await poll(session, guarded)).problem


def test_a_file_without_a_key_is_said_before_anything_is_asked(tmp_path):
    """One line, without what stands in the file."""
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(BadParameter, match="16 printable characters") as refused:
        admin_headers(str(tmp_path / "key"))
    assert "short" not in str(refused.value).replace("shorter", "")
