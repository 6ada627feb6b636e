"""A publisher that runs, and looks at what it has stored."""

import asyncio
import contextlib

from bus.record import decode_record
from bus.registration import decode_entry
from tests.bus.worker import INSTANCES, PRESSURE


@contextlib.asynccontextmanager
async def running(worker):
    """Run a worker's publisher, and end it."""
    task = asyncio.create_task(worker.publisher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def stored(bus):
    """The record that stands in the bus."""
    return decode_record(await bus.client.hget(PRESSURE, "record")).record


async def entry(bus, instance="a"):
    """The registration that stands in the bus."""
    raw = await bus.client.hget(INSTANCES, instance)
    return None if raw is None else decode_entry(raw)


async def _tells(bus, *, inflight):
    record = await stored(bus)
    return record is not None and record.inflight == inflight


async def _is_registered(bus):
    return await entry(bus) is not None
