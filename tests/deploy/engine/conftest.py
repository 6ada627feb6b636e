"""Engines and clients for these tests, and the recordings that the engine is held against."""

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest

from deploy.engine.batching import EngineModel
from deploy.engine.config import EngineConfig
from deploy.engine.server import SimulatedEngine

RECORDINGS = Path(__file__).parents[2] / "data" / "engines"
FAST = EngineModel(speed=50.0, max_model_len=2048)
FROZEN = EngineModel(speed=0.001, max_model_len=2048)  # the first step takes longer than any test


class Recorded(msgspec.Struct):
    """One recorded answer."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def events(self) -> list[str]:
        """The events of a stream that were kept, without their blank lines."""
        return [line for line in self.body.splitlines() if line.startswith("data: ")]


def read_recording(name: str) -> dict[str, Recorded]:
    """The sections of a recording by their titles."""
    sections = re.split(r"^===== ", (RECORDINGS / name).read_text(), flags=re.MULTILINE)[1:]
    return dict(_section(section) for section in sections)


def _section(text: str) -> tuple[str, Recorded]:
    title, first, *rest = text.split("\n")
    status = re.search(r"\b(\d\d\d) [A-Z]|^\((\d\d\d),", first)
    assert status is not None, first
    headers = {}
    while rest and (match := re.fullmatch(r"  ([a-z-]+): (.*)", rest[0])):
        headers[match[1]] = match[2]
        rest.pop(0)
    if rest and rest[0].startswith("first bytes after"):
        rest.pop(0)
    if first.startswith("("):  # a tuple of status, headers and body
        return title, Recorded(int(status[2]), {}, ast.literal_eval(first)[2].decode())
    return title, Recorded(int(status[1]), headers, "\n".join(rest).strip())


@pytest.fixture(scope="session")
def recorded() -> dict[str, Recorded]:
    """Answers of vLLM 0.32.0."""
    return read_recording("vllm-0.32.0-http.txt")


@pytest.fixture(scope="session")
def recorded_with_key() -> dict[str, Recorded]:
    """Answers of vLLM 0.32.0 with an API key and a queue limit."""
    return read_recording("vllm-0.32.0-http-api-key-queue-limit.txt")


StartEngine = Callable[..., Awaitable[SimulatedEngine]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts engines with the given settings, and stops them at the end."""
    engines: list[SimulatedEngine] = []

    async def start(**settings: object) -> SimulatedEngine:
        settings.setdefault("batching", FAST)
        settings.setdefault("models", ("tiny", "tiny-alias"))
        engine = SimulatedEngine(EngineConfig(**settings))
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client that is patient for ten seconds."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


class Watch:
    """Hears when an engine has taken and has dropped a request."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.submitted = asyncio.Event()
        self.dropped = asyncio.Event()
        steps = engine.steps
        submit, abort = steps.submit, steps.abort

        def watched_submit(asked, choices):
            submit(asked, choices)
            self.submitted.set()

        def watched_abort(choices):
            abort(choices)
            self.dropped.set()

        steps.submit = watched_submit
        steps.abort = watched_abort


def chat(max_tokens: int | None = 8, **fields: object) -> dict[str, object]:
    """A chat request of two prompt tokens."""
    body: dict[str, object] = {"messages": [{"role": "user", "content": "hi there"}], **fields}
    return body if max_tokens is None else {**body, "max_tokens": max_tokens}


def events_of(body: bytes) -> list[bytes]:
    """The data of the events of a stream."""
    return [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
