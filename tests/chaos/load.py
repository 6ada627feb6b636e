"""The load: trace-shaped, seeded, open loop, half streams and half plain, by clients that count and never forgive.

A client tries nothing again. In front of the replicas it plays the balancer that every fleet has: where no response
head came, the connection being refused or lost, it sends the request to another replica. A connection that is refused
costs nothing; whoever takes a request and drops it is named in the ledger, which judges whether that may be.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import aiohttp

from deploy.engine.batching import EngineModel
from deploy.replay.prompts import PromptMaker
from deploy.replay.schedule import Plan, schedule
from deploy.replay.traces import TraceRow, read_trace, trace_path
from tests.chaos.answers import Ending, Stream, error_ending, plain_ending
from tests.chaos.ledger import Call, Ledger
from tests.routing.load import capacity_per_s

#: Longest prompt and answer, tokens: the shape of the trace without its tail, so that a second holds many requests.
PROMPT_TOKENS: Final = 2048
OUTPUT_TOKENS: Final = 48

#: A request that has not ended by then is lost, or broken.
PATIENCE_S: Final = 30.0

#: Share of streams.
STREAMS: Final = 0.7

PATH: Final = "/v1/chat/completions"


#: Requests over which the load is held: the trace swings between 0.7 and 1.3 of its mean, and a share of the capacity
#: that is now and then all of it says nothing. Bursts within stay.
STEADY_REQUESTS: Final = 100


def trace(first: int = 0) -> list[TraceRow]:
    """Rows of the conversation trace from the `first` on and around, cut to size, about one a second."""
    rows = list(read_trace(trace_path("conv-sample")))
    gaps = [0.0, *(after.at_s - before.at_s for before, after in pairwise(rows))]
    at_s, found = 0.0, []
    for begin in range(0, len(rows), STEADY_REQUESTS):
        places = [(first + place) % len(rows) for place in range(begin, min(begin + STEADY_REQUESTS, len(rows)))]
        mean_s = sum(gaps[place] for place in places) / len(places)
        for place in places:
            at_s += gaps[place] / mean_s
            row = rows[place]
            found.append(TraceRow(at_s, min(row.prompt_tokens, PROMPT_TOKENS), min(row.output_tokens, OUTPUT_TOKENS)))
    return found


def rate_per_s(load: float, engines: Sequence[EngineModel]) -> float:
    """Requests a second that are this share of what the engines can do."""
    work = [(row.at_s, row.prompt_tokens, row.output_tokens) for row in trace()]
    return load * sum(capacity_per_s(work, engine) for engine in engines)


class Load:
    """Sends for as long as it runs; every request is in the ledger from its sending on.

    `replica_urls()` names those that the balancer knows, dead or alive.
    """

    def __init__(
        self, ledger: Ledger, replica_urls: Callable[[], Sequence[str]], *, per_s: float, seed: int, model: str = "sim"
    ) -> None:
        self.ledger = ledger
        self.lag_s = 0.0
        """Longest delay of a sending: the machine's fault."""
        self._urls = replica_urls
        self._per_s = per_s
        self._rng = random.Random(f"kinds {seed}")
        self._makers = {kind: PromptMaker(model, seed=seed, stream=kind, ignore_eos=True) for kind in (True, False)}
        self._calls: set[asyncio.Task[None]] = set()
        self._first_row = random.Random(seed).randrange(2000)

    @contextlib.asynccontextmanager
    async def running(self):
        """Send until the block ends, then wait for what is under way."""
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            sending = asyncio.create_task(self._send_all(http), name="load")
            try:
                yield self
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await asyncio.gather(*self._calls)

    def _dues(self) -> Iterator[tuple[float, TraceRow]]:
        rows = trace(self._first_row)
        yield from schedule(Plan(loop=True, rate=self._per_s), lambda: iter(rows))

    async def _send_all(self, http: aiohttp.ClientSession) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        for number, (due_s, row) in enumerate(self._dues()):
            wait_s = began_s + due_s - clock()
            if wait_s > 0.001:
                await asyncio.sleep(wait_s)
            self.lag_s = max(self.lag_s, -wait_s)
            is_stream = self._rng.random() < STREAMS
            call = Call(number, is_stream, row.output_tokens, clock())
            self.ledger.calls.append(call)
            task = asyncio.create_task(self._call(http, call, self._makers[is_stream].body(number, row)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _call(self, http: aiohttp.ClientSession, call: Call, body: bytes) -> None:
        try:
            call.ending = await self._balanced(http, call, body)
        except BaseException as fault:
            call.detail, call.ending = f"the client failed: {fault!r}", Ending.NOTHING
            raise
        finally:
            call.ended_s = asyncio.get_running_loop().time()

    async def _balanced(self, http: aiohttp.ClientSession, call: Call, body: bytes) -> Ending:
        urls = self._urls()
        turned = [urls[(call.number + offset) % len(urls)] for offset in range(len(urls))]
        for url in turned:
            call.replica = url
            try:
                answer = await http.post(f"{url}{PATH}", data=body, headers={"content-type": "application/json"})
            except TimeoutError:
                call.detail = f"no response head within {PATIENCE_S:g} s"
                return Ending.NOTHING
            except aiohttp.ClientConnectorError as fault:
                call.detail, call.refused = repr(fault), call.refused + 1
                continue
            except aiohttp.ClientConnectionError as fault:  # it was connected: the request was sent, or a part of it
                call.detail = repr(fault)
                call.dropped_by.append(url)
                continue
            except aiohttp.ClientError as fault:
                call.detail = repr(fault)
                return Ending.NOTHING
            async with answer:
                return await _read(call, answer)
        return Ending.NOTHING


async def _read(call: Call, answer: aiohttp.ClientResponse) -> Ending:
    """Take an answer whose head has come."""
    call.status = answer.status
    call.instance = answer.headers.get("x-forebay-instance")
    clock = asyncio.get_running_loop().time
    if answer.status == 200 and answer.content_type == "text/event-stream":
        return await _read_stream(call, answer)
    try:
        body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as fault:
        call.detail = repr(fault)
        return Ending.CUT
    if answer.status != 200:
        call.detail = body[:200].decode("utf-8", "replace")
        return error_ending(body)
    ending = plain_ending(body, asked_tokens=call.asked_tokens)
    if ending is Ending.WHOLE:
        call.first_s = clock()
    else:
        call.detail = body[:200].decode("utf-8", "replace")
    return ending


async def _read_stream(call: Call, answer: aiohttp.ClientResponse) -> Ending:
    stream, is_complete = Stream(), True
    clock = asyncio.get_running_loop().time
    try:
        async for data in answer.content.iter_any():
            if stream.feed(data):
                call.first_s = clock()
    except (aiohttp.ClientError, TimeoutError) as fault:
        call.detail, is_complete = repr(fault), False
    if stream.error is not None:
        call.detail = str(stream.error)[:200]
    return stream.ending(asked_tokens=call.asked_tokens, is_complete=is_complete)
