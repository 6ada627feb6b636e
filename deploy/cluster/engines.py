"""Whether the engines that were named are there, as a replica sees them: said once, at the start of a cluster.

A worker waits for its engine without a word on the screen, and a newcomer's first fault is a URL that is none.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp

from deploy.cluster.gauge import fetched
from deploy.loads import Loads
from workers.config import InstanceConfig

#: Workers ask an engine for its models as soon as they start: those that are there have answered by then.
PATIENCE_S: Final = 3.0
PAUSE_S: Final = 0.1


async def without_model(
    session: aiohttp.ClientSession, admin_url: str, engines: Sequence[InstanceConfig], *, patience_s: float = PATIENCE_S
) -> list[InstanceConfig]:
    """Return the engines that name no model, by what a replica says; after `patience_s` at the latest."""
    left = list(engines)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while left:
        loads = await fetched(session, f"{admin_url}/debug/instance_loads", Loads)
        named = {instance.id for instance in loads.instances if instance.models} if loads else set()
        left = [engine for engine in left if engine.id not in named]
        if not left or loop.time() >= end_s:
            break
        await asyncio.sleep(PAUSE_S)
    return left


def complaint(engine: InstanceConfig) -> str:
    """One line about an engine that names no model.

    >>> complaint(InstanceConfig("a", "http://10.0.0.5:8000"))
    'engine a names no model yet: forebay check --engine http://10.0.0.5:8000 says why'
    """
    return f"engine {engine.id} names no model yet: forebay check --engine {engine.engine_url} says why"
