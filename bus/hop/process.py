"""How a process of ours runs: uvloop, signals, logging, and a collector that does not stop the relay at each turn."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

from bus.hop.fault import WithoutContent, log_loop_fault
from bus.hop.outlet import OutletHandler

#: Objects made before the collector looks: a relay makes some hundred a request, hardly any of them in cycles.
GC_THRESHOLDS = (20_000, 50, 100)


def run_until_signal(serve: Callable[[asyncio.Event], Awaitable[None]], *, log_level: str) -> None:
    """Run `serve(stop)` on uvloop; SIGTERM and SIGINT set `stop`, upon which it is to end in order."""
    handlers = [OutletHandler(sys.stderr)]
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", handlers=handlers)
    logging.getLogger("aiohttp.server").addFilter(WithoutContent())
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_fault)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve(stop)

    uvloop.run(main())
