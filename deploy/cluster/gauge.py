"""What the cluster has done so far, gathered from the replicas' debug endpoints and the traffic's progress file.

Where there is no traffic of its own the replicas' answers are counted: what clients made of them nobody tells.

Owns the counting across restarts. Shows nothing: that is the view's work.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
from msgspec.structs import replace

from deploy.cluster.logs import tail
from deploy.loads_view import Loads

POLL_LIMIT_S = 0.5
"""Longest wait for one replica; the view must not stand still for a dead one."""

PROGRESS_BYTES = 4096
"""More than the longest progress line."""


T = TypeVar("T", bound=msgspec.Struct)


class Progress(msgspec.Struct, frozen=True):
    """A line of the traffic's progress file; counts since the traffic began, times of the last ten seconds."""

    done: int = 0
    errors: int = 0
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None


class Totals(msgspec.Struct, frozen=True):
    """What clients have seen; percentiles None where nobody measured them."""

    requests: int = 0
    errors: int | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None


class Answered(msgspec.Struct, frozen=True):
    """Of a replica's own state, what is counted here: its answers by status."""

    answers: dict[str, int] = {}


class Counter:
    """A number that grows, put together from readings of a process that may have begun anew in between."""

    def __init__(self) -> None:
        self.before = 0
        self.last = 0

    def read(self, value: int) -> int:
        """Return the total after one more reading.

        >>> counter = Counter()
        >>> [counter.read(value) for value in (5, 9, 2, 3)]
        [5, 9, 11, 12]
        """
        if value < self.last:
            self.before += self.last
        self.last = value
        return self.before + value


class Gauge:
    """Reads replicas, by the URLs of their admin listeners, and traffic; keeps the last thing each said."""

    def __init__(self, urls: list[str], progress_file: Path | None) -> None:
        self.urls = urls
        self.progress_file = progress_file
        self.loads: dict[str, Loads] = {}
        self.progress = Progress()
        self.totals = Totals()
        self.done, self.errors = Counter(), Counter()
        self.selected: dict[tuple[str, str], Counter] = {}
        self.answers: dict[tuple[str, int], Counter] = {}
        self.shares: dict[str, int] = {}

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Ask everybody once; who does not answer has nothing to show, and its counts stay."""
        pages = [fetched(session, f"{url}/debug/instance_loads", Loads) for url in self.urls]
        self.loads = {
            url: loads for url, loads in zip(self.urls, await asyncio.gather(*pages), strict=True) if loads is not None
        }
        if self.progress_file is None:
            states = [fetched(session, f"{url}/debug/replica", Answered) for url in self.urls]
            for url, state in zip(self.urls, await asyncio.gather(*states), strict=True):
                self.hear(url, state.answers if state else {})
        self.count()

    def hear(self, url: str, answers: Mapping[str, int]) -> None:
        """Take in how often a replica has answered with each status since it began."""
        for status, count in answers.items():
            self.answers.setdefault((url, int(status)), Counter()).read(count)

    def count(self) -> None:
        """Bring the totals up to date with what was read."""
        shares: dict[str, int] = {}
        for url, loads in self.loads.items():
            for instance in loads.instances:
                self.selected.setdefault((url, instance.id), Counter()).read(instance.selected)
        for (_, identity), counter in self.selected.items():
            shares[identity] = shares.get(identity, 0) + counter.before + counter.last
        self.shares = shares
        if self.progress_file is None:
            totals = {status: 0 for _, status in self.answers}
            for (_, status), counter in self.answers.items():
                totals[status] += counter.before + counter.last
            failed = sum(count for status, count in totals.items() if status >= 500)
            self.totals = Totals(requests=sum(totals.values()), errors=failed)
            return
        line = last_progress(self.progress_file) or self.progress
        self.progress = line
        done, errors = self.done.read(line.done), self.errors.read(line.errors)
        self.totals = Totals(done, errors, line.ttft_p50_ms, line.ttft_p99_ms)

    def fleet(self) -> Loads | None:
        """Return one replica's view of the instances, with what all replicas have sent to each."""
        first = next(iter(self.loads.values()), None)
        if first is None:
            return None
        summed = (replace(each, selected=self.shares.get(each.id, 0)) for each in first.instances)
        return replace(first, instances=tuple(summed))


async def fetched(session: aiohttp.ClientSession, url: str, kind: type[T]) -> T | None:
    """Return a page of a replica as a struct, or None if it cannot be had in time."""
    try:
        async with asyncio.timeout(POLL_LIMIT_S), session.get(url) as answer:
            if answer.status != 200:
                return None
            return msgspec.json.decode(await answer.read(), type=kind)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
        return None


def last_progress(path: Path) -> Progress | None:
    """Return the last whole line of a progress file, or None while there is none."""
    try:
        lines = tail(path, PROGRESS_BYTES).split(b"\n")[:-1]
        return msgspec.json.decode(lines[-1], type=Progress) if lines else None
    except (OSError, msgspec.MsgspecError):
        return None


class Percentiles(msgspec.Struct, frozen=True):
    """Of a report, what the summary repeats."""

    p50: float
    p99: float


class Report(msgspec.Struct, frozen=True):
    """What the traffic leaves behind when it ends."""

    ttft_ms: Percentiles | None = None


def report_of(path: Path) -> Report | None:
    """Return the report of the traffic, or None if it left none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError):
        return None
