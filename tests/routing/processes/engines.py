"""All engines of a fleet in one process, and among them the all-knowing router.

The router is a listener beside the engines: it looks at their batchers in the very turn of the loop in which it hands
the request to the engine's own handler. `python -m tests.routing.processes.engines --engine PORT:SPEED …` prints the
router's port when all of them listen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import click
from aiohttp import web

from bus.hop.process import run_until_signal
from bus.hop.server import Listener
from deploy.engine import surface
from deploy.engine.batching import EngineModel
from deploy.engine.config import EngineConfig
from deploy.engine.server import SimulatedEngine
from deploy.engine.surface import BODY_LIMIT_BYTES
from tests.routing.processes.instant import Immediately, KnownSite, job_of
from tests.routing.processes.wire import CHAT, MODEL, lengths, traced
from tests.routing.rivals import AllKnowing

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _chat_handler(engine: SimulatedEngine) -> Handler:
    """What the engine does with a chat completion."""
    runner = engine._runner
    assert isinstance(runner, web.AppRunner)
    found: Handler = next(
        route.handler
        for route in runner.app.router.routes()
        if route.method == "POST" and route.resource is not None and route.resource.canonical == CHAT
    )
    return found


def router_app(engines: Sequence[SimulatedEngine], mean_output_tokens: float) -> web.Application:
    """The all-knowing router over engines that have started."""
    handlers = [_chat_handler(engine) for engine in engines]
    sites = [KnownSite(index, engine.steps) for index, engine in enumerate(engines)]
    router = AllKnowing(Immediately(), sites, mean_output_tokens=mean_output_tokens)

    async def handle(request: web.Request) -> web.StreamResponse:
        job = job_of(lengths(await request.read()).prompt_tokens)
        router.arrived(job)
        return await handlers[job.site](request)

    app = web.Application(client_max_size=BODY_LIMIT_BYTES)
    app.router.add_post(CHAT, handle)
    return app


async def serve(configs: Sequence[EngineConfig], mean_output_tokens: float, stop: asyncio.Event) -> None:
    """Run engines and router until `stop` is set."""
    surface.parse = traced(surface.parse)
    engines = [SimulatedEngine(config) for config in configs]
    for engine in engines:
        await engine.start()
    listener = Listener.of_app(router_app(engines, mean_output_tokens), "127.0.0.1", 0)
    await listener.start()
    click.echo(listener.port)
    await stop.wait()
    await listener.stop()
    for engine in engines:
        await engine.stop()


@click.command()
@click.option("--engine", "engines", multiple=True, required=True, metavar="PORT:SPEED", help="One engine, repeatable.")
@click.option("--tokens-per-chunk", type=int, default=32, help="Tokens of a streamed event.")
@click.option("--mean-output", type=float, default=256.0, help="What the all-knowing router knows of answers.")
def main(engines: tuple[str, ...], tokens_per_chunk: int, mean_output: float) -> None:
    """Run engines in one process until SIGTERM."""
    configs = [
        EngineConfig(
            port=int(port),
            models=(MODEL,),
            batching=EngineModel(speed=float(speed)),
            tokens_per_chunk=tokens_per_chunk,
        )
        for port, _, speed in (each.partition(":") for each in engines)
    ]
    run_until_signal(lambda stop: serve(configs, mean_output, stop), log_level="warning")


if __name__ == "__main__":
    main()
