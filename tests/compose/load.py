"""Streams through the balancer, by the official client, as long as faults are injected; every one is accounted for.

Owns what became of each stream and the line of a table that a fault gets. Knows nothing of Docker.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import openai

#: Every so many streams one has a long prompt, so that whenever a fault strikes some requests have no first event yet.
LONG_EVERY = 4
LONG_WORDS = 6_000

#: A stream whose first event takes longer is affected by whatever goes on. It takes tens of
#: milliseconds, after a long prompt one to two seconds.
SLOW_S = 2.0
SLOW_AFTER_LONG_S = 6.0

#: So many streams in a row that nothing has affected, and the cluster has recovered.
RECOVERED = 20


class Stream(msgspec.Struct):
    """One stream, from its request on; times are of this process's monotonic clock, seconds."""

    number: int
    started_s: float
    first_event_s: float | None = None
    ended_s: float | None = None
    replica: str = ""
    """By the balancer's name of it."""
    instance: str = ""
    events: int = 0
    reason: str = ""
    is_done: bool = False
    """Whether `[DONE]` came."""
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Answered to its end."""
        return self.is_done and bool(self.reason) and not self.problem

    @property
    def is_lost(self) -> bool:
        """Over without an answer that had begun."""
        return self.ended_s is not None and not self.is_whole and self.first_event_s is None

    @property
    def is_broken(self) -> bool:
        """Begun, and not ended as it should."""
        return self.ended_s is not None and not self.is_whole and self.first_event_s is not None

    @property
    def is_long(self) -> bool:
        """Whether its prompt is a long one."""
        return self.number % LONG_EVERY == 0

    @property
    def ttft_s(self) -> float | None:
        """Time to its first event; None: there was none."""
        return None if self.first_event_s is None else self.first_event_s - self.started_s

    @property
    def is_unaffected(self) -> bool:
        """Whole, and without a delay that somebody would notice."""
        limit_s = SLOW_AFTER_LONG_S if self.is_long else SLOW_S
        return self.is_whole and self.ttft_s is not None and self.ttft_s < limit_s


class Fault(msgspec.Struct):
    """One fault: its name, and the time from it to the next one."""

    name: str
    began_s: float
    ended_s: float = float("inf")


class Load:
    """An open loop: so many streams a second, whatever becomes of those before."""

    def __init__(self, url: str, api_key: str, *, per_s: float, tokens: int) -> None:
        self.streams: list[Stream] = []
        self._client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=60.0)
        self._pause_s = 1 / per_s
        self._tokens = tokens

    @contextlib.asynccontextmanager
    async def running(self, *, at_least: int = 0) -> AsyncIterator[None]:
        """Send streams while the block runs and until there are `at_least` so many, then wait for all to end."""
        is_over = asyncio.Event()
        async with self._client, asyncio.TaskGroup() as tasks:

            async def send() -> None:
                due_s = time.monotonic()
                while not is_over.is_set() or len(self.streams) < at_least:
                    tasks.create_task(self._one(len(self.streams)))
                    due_s += self._pause_s
                    await asyncio.sleep(max(0.0, due_s - time.monotonic()))

            tasks.create_task(send())
            try:
                yield
            finally:
                is_over.set()

    async def burst(self, count: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Send so many streams with long prompts at once, do something meanwhile, and wait for all to end."""
        async with self._client, asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(self._one(number * LONG_EVERY))
            await meanwhile()

    async def _one(self, number: int) -> None:
        stream = Stream(number, time.monotonic())
        self.streams.append(stream)
        try:
            await self._read(stream)
        except Exception as fault:  # the client's own errors, and what its transport raises in mid-stream
            stream.problem = f"{type(fault).__name__}: {fault}"
        finally:
            stream.ended_s = time.monotonic()

    async def _read(self, stream: Stream) -> None:
        """Line by line, since the client swallows `[DONE]` otherwise."""
        async with self._client.chat.completions.with_streaming_response.create(
            model="sim",
            messages=[
                {"role": "user", "content": f"{stream.number}" + " word" * (LONG_WORDS if stream.is_long else 5)}
            ],
            max_tokens=self._tokens,
            stream=True,
        ) as answer:
            stream.replica = answer.headers.get("x-forebay-replica", "")
            stream.instance = answer.headers.get("x-forebay-instance", "")
            async for line in answer.iter_lines():
                if line.startswith("data:"):
                    stream.first_event_s = stream.first_event_s or time.monotonic()
                    take(stream, line.removeprefix("data:").strip())


def take(stream: Stream, data: str) -> None:
    """Note what one event says."""
    if data == "[DONE]":
        stream.is_done = True
        return
    event = msgspec.json.decode(data)
    stream.events += 1
    if "error" in event:
        stream.problem = f"error event: {event['error'].get('message')}"
    for choice in event.get("choices", ()):
        stream.reason = choice.get("finish_reason") or stream.reason


def in_flight(streams: Sequence[Stream], at_s: float) -> list[Stream]:
    """The streams that were under way at one moment."""
    return [s for s in streams if s.started_s <= at_s and (s.ended_s is None or s.ended_s > at_s)]


def ended_in(streams: Sequence[Stream], fault: Fault) -> list[Stream]:
    """The streams that ended, well or not, from a fault to the next one."""
    return [s for s in streams if s.ended_s is not None and fault.began_s <= s.ended_s < fault.ended_s]


def recovery_s(streams: Sequence[Stream], fault: Fault) -> float | None:
    """Seconds from a fault to the first of twenty streams in a row that it did not affect; None: not yet."""
    later = sorted((s for s in streams if s.started_s >= fault.began_s), key=lambda s: s.started_s)
    for first in range(len(later) - RECOVERED + 1):
        row = later[first : first + RECOVERED]
        if all(s.is_unaffected for s in row):
            return row[0].started_s - fault.began_s
    return None


def table(streams: Sequence[Stream], faults: Sequence[Fault]) -> str:
    """The table for people: a line a fault."""
    lines = [
        "| fault | in flight, not begun | lost | broken after their begin | slowest first event | recovery |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for fault in faults:
        met = in_flight(streams, fault.began_s)
        waiting = [s for s in met if s.first_event_s is None or s.first_event_s > fault.began_s]
        ended = ended_in(streams, fault)
        slowest_s = max((s.ttft_s or 0.0 for s in ended), default=0.0)
        seconds = recovery_s(streams, fault)
        lines.append(
            f"| {fault.name} | {len(met)}, {len(waiting)} | {sum(s.is_lost for s in ended)} "
            f"| {sum(s.is_broken for s in ended)} | {slowest_s:.1f} s "
            f"| {'not seen' if seconds is None else f'{seconds:.1f} s'} |"
        )
    return "\n".join(lines)
