import aiohttp
import pytest
from aiohttp import web

from deploy.checks.engine import check_engine, key_header
from deploy.engine.config import EngineConfig
from deploy.engine.server import SimulatedEngine
from deploy.ports import free_ports
from workers.config import InstanceConfig


async def looked(url: str, headers: dict[str, str] | None = None) -> str:
    """Return the line on one engine."""
    async with aiohttp.ClientSession(headers=headers) as session:
        (finding,) = await check_engine(session, InstanceConfig(id="e", engine_url=url))
    return str(finding)


@pytest.fixture
async def engine():
    """Give a simulated engine that asks for a key."""
    one = SimulatedEngine(EngineConfig(models=("a", "b"), api_key="k"))
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def strange():
    """Give a server that is up and says what it is told to say."""
    answers: dict[str, web.Response] = {}

    async def handle(request: web.Request) -> web.Response:
        return answers.get(request.path) or web.Response(status=404)

    runner = web.AppRunner(handler_app(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", answers
    await runner.cleanup()


def handler_app(handle) -> web.Application:
    """Return an application with one handler for everything."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    return app


async def test_an_engine_is_known_with_kind_and_models(engine, tmp_path):
    """With its key the engine tells what it is."""
    (tmp_path / "key").write_text("k\nnot the key\n")
    headers, problems = key_header(str(tmp_path / "key"))
    assert problems == []
    assert await looked(engine.url, headers) == f"right  engine e {engine.url}: vllm, serves a, b"


async def test_an_engine_that_asks_for_a_key_is_wrong_and_the_option_is_named(engine):
    """The line says where the key belongs."""
    line = await looked(engine.url)
    assert line.startswith("wrong")
    assert "engine_key_file" in line


async def test_an_engine_that_is_not_there_is_wrong():
    """Nobody listens."""
    (port,) = free_ports(1)
    line = await looked(f"http://127.0.0.1:{port}")
    assert line.startswith("wrong")
    assert "cannot be reached" in line


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, "", "not ready"),
        (404, "", "answers 404"),
        (200, "hello", "without a list"),
        (200, '{"data":[]}', "no model"),
    ],
)
async def test_a_server_that_is_no_ready_engine_is_wrong(strange, status, body, words):
    """Each way of not being an engine has its own words."""
    url, answers = strange
    answers["/v1/models"] = web.Response(status=status, text=body)
    line = await looked(url)
    assert line.startswith("wrong")
    assert words in line


async def test_an_engine_without_known_metrics_is_a_note(strange):
    """It can be served all the same."""
    url, answers = strange
    answers["/v1/models"] = web.Response(text='{"data":[{"id":"m"}]}')
    line = await looked(url)
    assert line.startswith("note")
    assert "serves m" in line


def test_a_key_file_that_cannot_be_used_is_wrong(tmp_path):
    """Missing and empty are told apart."""
    (tmp_path / "empty").write_text("\nkey on the second line")
    assert "No such file" in str(key_header(str(tmp_path / "gone"))[1][0])
    assert "first line is empty" in str(key_header(str(tmp_path / "empty"))[1][0])
