"""The yardstick: a bare two-hop relay with two Redis scripts a request, as one would write it with aiohttp today.

client → outer (two scripts) → inner → engine, each hop a process: aiohttp server, aiohttp client, uvloop, no tricks.
It chooses nothing, predicts nothing, retries nothing: what it costs is what the way itself costs.

`python -m tests.bench.yardstick inner --upstream URL`; `… outer --upstream URL --redis URL`. Prints its port.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final
from uuid import uuid4

import redis.asyncio as redis_asyncio
import uvloop
from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

READ: Final = """
local now = redis.call('TIME')
local stored = redis.call('HMGET', KEYS[1], 'record', 'published_us')
return {now[1], now[2], stored[1], stored[2]}
"""

RESERVE: Final = """
local now = redis.call('TIME')
local tokens = redis.call('HINCRBY', KEYS[1], 'tokens', ARGV[2])
local requests = redis.call('HINCRBY', KEYS[1], 'requests', 1)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ';' .. now[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {tokens, requests}
"""

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host"}
)


class Hop:
    """One hop: forwards every request to `upstream`; with a Redis client it runs the two scripts first."""

    def __init__(self, upstream: str, client: redis_asyncio.Redis | None) -> None:
        self._upstream = upstream
        self._read = client.register_script(READ) if client else None
        self._reserve = client.register_script(RESERVE) if client else None
        self._session: ClientSession | None = None

    async def session(self, _: web.Application) -> AsyncIterator[None]:
        """Hold one client session, its connections kept alive, for the life of the application."""
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False) as own:
            self._session = own
            yield

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Relay one request."""
        assert self._session is not None
        body = await request.read()
        if self._read is not None and self._reserve is not None:
            await self._read(keys=["yardstick:{bench}:pressure"])
            await self._reserve(keys=["yardstick:{bench}:reserved"], args=[uuid4().hex, 120, 2000])
        url = self._upstream + request.path_qs
        async with self._session.request(
            request.method, url, data=body or None, headers=_forwarded(request.headers.items())
        ) as answer:
            if answer.content_type == "text/event-stream":
                return await _stream(request, answer)
            headers = _forwarded(answer.headers.items())
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)


async def _stream(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_forwarded(answer.headers.items()))
    await response.prepare(request)
    async for chunk in answer.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response


def _forwarded(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_BY_HOP}


async def serve(upstream: str, redis_url: str | None, ready: Callable[[int], None]) -> None:
    """Listen on a free loopback port, tell it, serve until cancelled."""
    client = redis_asyncio.Redis.from_url(redis_url) if redis_url else None
    hop = Hop(upstream, client)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.cleanup_ctx.append(hop.session)
    app.router.add_route("*", "/{path:.*}", hop.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        if client is not None:
            await client.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("hop", choices=("outer", "inner"))
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--redis")
    chosen = parser.parse_args()
    uvloop.run(serve(chosen.upstream, chosen.redis, lambda port: print(port, flush=True)))
