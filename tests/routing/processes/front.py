"""A lean front: counts requests in flight by instance, sends each to the fewest, and relays.

One process of it sees everything; of several each knows only its own counts. It has no bus and predicts nothing; its
transport is the project's own, so that what differs is the choice. `python -m tests.routing.processes.front --engine
URL … --replica I --replicas N` prints its port.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import click
from aiohttp import web

from bus.hop.client import HopClient
from bus.hop.errors import HopFailed
from bus.hop.process import run_until_signal
from bus.hop.reply import StreamReply
from bus.hop.server import Listener
from deploy.engine.surface import BODY_LIMIT_BYTES
from tests.routing.processes.instant import Immediately, Place, job_of
from tests.routing.processes.wire import CHAT
from tests.routing.rivals import FewestInFlight

_LIMIT_S: Final = 600.0
_HEADERS: Final = [(b"content-type", b"application/json")]


class Front:
    """One process of the policy `fewest in flight`."""

    def __init__(self, engine_urls: Sequence[str], *, replica: int, replicas: int) -> None:
        self._replica = replica
        self._clients = [HopClient(url) for url in engine_urls]
        places = [Place(index) for index in range(len(engine_urls))]
        self._counts = FewestInFlight(Immediately(), places, replicas=replicas, is_all_seeing=False)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Choose, relay, count no more."""
        body = await request.read()
        job = job_of(0, replica=self._replica)
        self._counts.arrived(job)
        try:
            return await self._relay(request, body, self._clients[job.site])
        finally:
            self._counts.ended(job)

    async def _relay(self, request: web.BaseRequest, body: bytes, client: HopClient) -> web.StreamResponse:
        try:
            answer = await client.exchange("POST", CHAT, _HEADERS, body, head_timeout_s=_LIMIT_S)
        except HopFailed as fault:
            return web.Response(status=502, text=str(fault))
        try:
            reply = await StreamReply.start(request, answer.status, [("content-type", "text/event-stream")])
            await reply.relay(answer, silence_s=_LIMIT_S)
            await reply.response.write_eof()
        finally:
            answer.abort()
        return reply.response


async def serve(engine_urls: Sequence[str], replica: int, replicas: int, stop: asyncio.Event) -> None:
    """Listen, tell the port, serve until `stop` is set."""
    front = Front(engine_urls, replica=replica, replicas=replicas)
    listener = Listener.of_handler(front.handle, "127.0.0.1", 0, body_limit=BODY_LIMIT_BYTES)
    await listener.start()
    click.echo(listener.port)
    await stop.wait()
    await listener.stop()


@click.command()
@click.option("--engine", "engines", multiple=True, required=True, metavar="URL", help="One engine, repeatable.")
@click.option("--replica", type=int, default=0, help="Number of this one.")
@click.option("--replicas", type=int, default=1, help="How many there are.")
def main(engines: tuple[str, ...], replica: int, replicas: int) -> None:
    """Run one front until SIGTERM."""
    run_until_signal(lambda stop: serve(engines, replica, replicas, stop), log_level="warning")


if __name__ == "__main__":
    main()
