"""A replay from its first request to its report: the loop that sends when it is time, and stops when it is told to.

Never waits for an answer before the next request. Knows no command line and no terminal.
"""

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final

import aiohttp
import msgspec

from bus.errors import ForebayError
from deploy.replay.client import ReplayClient, Target
from deploy.replay.outcome import Outcome
from deploy.replay.progress import ProgressLine, Window
from deploy.replay.prompts import PromptMaker
from deploy.replay.report import DEFAULT_LAG_BOUND_MS, Report, Tally, summarise
from deploy.replay.schedule import Due

_EARLY_S: Final = 0.0005  # uvloop's timers have whole milliseconds: half of one early is on time
_MODELS_RETRY_S: Final = 0.5


class TargetUnavailableError(ForebayError):
    """No model could be learned from the target before the deadline; the message says what happened instead."""


class _Models(msgspec.Struct):
    class _Model(msgspec.Struct):
        id: str

    data: list[_Model]


async def replay(
    dues: Iterable[Due],
    prompts: PromptMaker,
    targets: list[Target],
    *,
    stop: asyncio.Event,
    timeout_s: float = 600.0,
    stream: bool = True,
    lag_bound_ms: float = DEFAULT_LAG_BOUND_MS,
    on_progress: Callable[[ProgressLine], None] | None = None,
    progress_every_s: float = 1.0,
) -> Report:
    """Send every due request, wait for the answers, report.

    Setting `stop` ends it at once; what is in flight then is reported as unfinished.

    Raises:
        TraceError: a bad row; requests before it have been sent and are abandoned.

    """
    run = _Run(prompts, targets, timeout_s=timeout_s, stream=stream)
    stopped = asyncio.create_task(stop.wait())
    work = asyncio.create_task(run.send_all(dues))
    progress = asyncio.create_task(run.tell(on_progress, progress_every_s))
    try:
        await asyncio.wait((stopped, work, progress), return_when=asyncio.FIRST_COMPLETED)
        for ended in (work, progress):
            if ended.done():
                ended.result()  # a trace or a progress file that failed speaks up here
        return summarise(run.tally, duration_s=run.elapsed_s(), lag_bound_ms=lag_bound_ms)
    finally:
        for task in (stopped, work, progress):
            task.cancel()
        await asyncio.gather(stopped, work, progress, return_exceptions=True)
        await run.client.close()
        if on_progress is not None:
            on_progress(run.window.line(run.elapsed_s(), run.tally))


class _Run:
    """The state of one replay: the clock's zero, the client, what has been counted."""

    def __init__(self, prompts: PromptMaker, targets: list[Target], *, timeout_s: float, stream: bool) -> None:
        self._prompts = prompts
        self._zero_s = perf_counter()
        self.tally = Tally()
        self.window = Window()
        self.client = ReplayClient(targets, self._over, timeout_s=timeout_s, stream=stream)

    def elapsed_s(self) -> float:
        return perf_counter() - self._zero_s

    async def send_all(self, dues: Iterable[Due]) -> None:
        for number, due in enumerate(dues):
            body = self._prompts.body(number, due.row)
            wait_s = due.due_s - self.elapsed_s()
            if wait_s > _EARLY_S:
                await asyncio.sleep(wait_s)
            elif number % 64 == 63:
                await asyncio.sleep(0)  # a burst must not keep answers from being read
            lag_s = self.client.start(body, due_s=self._zero_s + due.due_s)
            self.tally.add_sent(lag_s)
            self.window.add_sent(self.elapsed_s(), lag_s)
        await self.client.drained()

    async def tell(self, on_progress: Callable[[ProgressLine], None] | None, every_s: float) -> None:
        if on_progress is None:
            await asyncio.Event().wait()
            return
        while True:
            await asyncio.sleep(every_s)
            on_progress(self.window.line(self.elapsed_s(), self.tally))

    def _over(self, outcome: Outcome) -> None:
        self.tally.add(outcome)
        self.window.add(self.elapsed_s(), outcome)


async def first_model(target: Target, *, deadline_s: float) -> str:
    """The first model of `GET /v1/models`, asked again every half second until it answers.

    Raises:
        TargetUnavailableError: it did not name a model within `deadline_s` seconds.

    """
    url = f"{target.base_url}/v1/models"
    problem = "no answer"
    try:
        async with asyncio.timeout(deadline_s), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(url) as response:
                        body = await response.read()
                        if response.status == 200:
                            models = msgspec.json.decode(body, type=_Models)
                            if models.data:
                                return models.data[0].id
                        problem = f"status {response.status}" if response.status != 200 else "it names no model"
                except (aiohttp.ClientError, msgspec.MsgspecError, OSError) as error:
                    problem = str(error)
                await asyncio.sleep(_MODELS_RETRY_S)
    except TimeoutError:
        raise TargetUnavailableError(
            f"{url}: no model within {deadline_s:g} s ({problem}); name one with --model"
        ) from None
