"""Whether an engine can be served: it answers, names its models, and says something about its load."""

import asyncio
from pathlib import Path

import aiohttp

from deploy.checks.finding import Finding, note, right, wrong
from workers.config import InstanceConfig
from workers.engines import METRICS, recognise
from workers.models import ModelList, read_models

ANSWER_S = 3.0


async def check_engine(session: aiohttp.ClientSession, instance: InstanceConfig) -> list[Finding]:
    """Return what is right and wrong with one engine."""
    subject = f"engine {instance.id} {instance.engine_url}"
    try:
        async with asyncio.timeout(ANSWER_S):
            status, body = await page(session, f"{instance.engine_url}/v1/models")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {ANSWER_S:.0f} s"
        return [wrong(subject, f"cannot be reached: {reason}", "is it running, and is the URL the one of its API?")]
    if status in {401, 403}:
        return [
            wrong(
                subject,
                f"asks for a key ({status})",
                "put the key into a file and name it with engine_key_file in [worker]",
            )
        ]
    if status == 503:
        return [wrong(subject, "is not ready (503)", "wait until it has loaded its model")]
    models = models_in(body) if status == 200 else None
    if models is None:
        return [
            wrong(
                subject,
                f"/v1/models answers {status} without a list of models",
                "the URL must be that of an OpenAI API",
            )
        ]
    if not models.names:
        return [wrong(subject, "serves no model", "load one")]
    return [await load_finding(session, subject, instance, models)]


async def load_finding(
    session: aiohttp.ClientSession, subject: str, instance: InstanceConfig, models: ModelList
) -> Finding:
    """Return what the engine says about its load."""
    metrics: bytes | None = None
    try:
        async with asyncio.timeout(ANSWER_S):
            status, body = await page(session, f"{instance.engine_url}{METRICS}")
        metrics = body if status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # an engine without metrics is served all the same
    adapter = recognise(metrics, models.owner)
    served = f"serves {', '.join(models.names)}"
    if not adapter.pages:
        return note(
            subject, f"{served}; no load metrics known", "its load is predicted from what is sent to it; nothing to do"
        )
    if metrics is None and adapter.pages == (METRICS,):
        remedy = "start it with its metrics (llama.cpp: --metrics); without them its load is predicted all the same"
        return note(subject, f"{adapter.kind}, {served}; {METRICS} cannot be read", remedy)
    return right(subject, f"{adapter.kind}, {served}")


async def page(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    """Return status and body of a page."""
    async with session.get(url) as answer:
        return answer.status, await answer.read()


def models_in(body: bytes) -> ModelList | None:
    """Return what a list of models says, or None if it is none.

    >>> models_in(b'{"object": "list", "data": [{"id": "a"}]}').names
    ('a',)
    >>> models_in(b"hello") is None
    True
    """
    try:
        return read_models(body)
    except ValueError:
        return None


def key_header(path: str) -> tuple[dict[str, str], list[Finding]]:
    """Return the headers that carry the engines' key, and what is wrong with the file it stands in."""
    if not path:
        return {}, []
    try:
        key = Path(path).read_text(encoding="utf-8").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        return {}, [wrong("engine_key_file", f"{path}: {error}", "name a file that this user may read")]
    if not key:
        return {}, [wrong("engine_key_file", f"{path}: the first line is empty", "put the key on the first line")]
    return {"authorization": f"Bearer {key}"}, []
