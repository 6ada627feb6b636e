import asyncio
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from deploy.commands.top import poll, top, views

LOADS = {"replica": "r1", "strategy": "least_load", "pools": {}, "instances": [{"pool": "default", "id": "e1"}]}


@asynccontextmanager
async def replica(loads):
    """Serve the debug endpoints of a replica that says this."""

    async def instance_loads(_request):
        return web.json_response(loads)

    async def selections(_request):
        return web.json_response({"selections": []})

    app = web.Application()
    app.router.add_get("/debug/instance_loads", instance_loads)
    app.router.add_get("/debug/selections", selections)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_replica_that_goes_away_keeps_its_last_view():
    """The problem is said, and the last good view stays below it."""
    async with aiohttp.ClientSession() as session:
        async with replica(LOADS) as url:
            seen = await poll(session, url)
        gone = await poll(session, url)
    assert seen.problem is None
    assert gone.loads is None
    view, line = views(gone, seen, url)
    assert line.startswith(f"{url} does not answer")
    assert len(view.renderables) == 3


async def test_something_else_is_said_to_be_something_else():
    """A server that is no replica is named as such."""
    async with replica({"instances": 5}) as url, aiohttp.ClientSession() as session:
        sample = await poll(session, url)
    assert "not the answer of a Forebay replica" in sample.problem


@pytest.mark.processes
async def test_pipe_gets_plain_lines():
    """Where standard output is no terminal a plain line is printed, and one look is enough if asked for."""
    async with replica(LOADS) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from deploy.commands.top import top; top()",
            "--target",
            url,
            "--once",
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode() == "r1 least_load | e1 unknown in flight – backlog – kv – share –\n"


def test_nobody_there_once_is_status_one():
    """One look at nobody says so and fails."""
    result = CliRunner().invoke(top, ["--target", "http://127.0.0.1:1", "--once"])
    assert result.exit_code == 1
    assert "does not answer" in result.output


def test_target_must_be_a_url():
    """A target without a scheme is refused by name."""
    result = CliRunner().invoke(top, ["--target", "127.0.0.1:9000"])
    assert result.exit_code == 2
    assert "--target" in result.output
