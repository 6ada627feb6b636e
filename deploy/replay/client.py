"""The open-loop client: every request leaves when it is told to, over an idle connection or a new one, never waiting.

Owns the connections of every target and the requests in flight. One request is one outcome, reported exactly once.
It never tries a request again, save on a fresh connection when the server had closed the idle one meanwhile.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit

from deploy.replay.answer import PlainScan, StreamScan, one_line
from deploy.replay.connection import Connection, Exchange
from deploy.replay.outcome import Failure, Outcome

# A close this soon after a request on a reused connection is the server's keep-alive limit crossing with the request;
# later than that it is an answer that was lost, and counts.
_STALE_S: Final = 0.1


class Target:
    """One server requests go to, with its idle connections."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: a target is http://HOST:PORT or https://HOST:PORT")
        self.is_tls = parts.scheme == "https"
        self.host: str = parts.hostname
        self.port: int = parts.port or (443 if self.is_tls else 80)  # raises ValueError for a port that is none
        self.base_path = parts.path.rstrip("/").removesuffix("/v1")
        self.base_url = f"{parts.scheme}://{parts.netloc}{self.base_path}"
        self.idle: list[Connection] = []
        self._head = (
            f"POST {self.base_path}/v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            "User-Agent: forebay-replay\r\nAccept: text/event-stream, application/json\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode("ascii")

    def request(self, body: bytes) -> tuple[bytes, bytes]:
        """Head and body of one chat completion, ready to be written."""
        return b"%b%d\r\n\r\n" % (self._head, len(body)), body


class _Job:
    """A request in flight: its exchange, where it runs, and the timer that ends it."""

    __slots__ = ("connecting", "connection", "exchange", "is_second_try", "lag_s", "target", "timer")

    def __init__(self, target: Target, exchange: Exchange, lag_s: float) -> None:
        self.target = target
        self.exchange = exchange
        self.lag_s = lag_s
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_second_try = False


class ReplayClient:
    """Sends chat completions round robin over its targets and reports each outcome.

    Args:
        targets: where requests go.
        on_outcome: called once for each request that is over, from the event loop.
        timeout_s: longest time a request may take, connecting included.
        stream: whether answers are event streams.

    """

    def __init__(
        self, targets: list[Target], on_outcome: Callable[[Outcome], None], *, timeout_s: float, stream: bool = True
    ) -> None:
        self._targets = targets
        self._next_target = cycle(targets).__next__
        self._on_outcome = on_outcome
        self._timeout_s = timeout_s
        self._new_scan: type[StreamScan] | type[PlainScan] = StreamScan if stream else PlainScan
        self._jobs: set[_Job] = set()
        self._connections: dict[Connection, _Job | None] = {}
        self._all_over = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Requests sent and not over."""
        return len(self._jobs)

    def start(self, body: bytes, *, due_s: float) -> float:
        """Send one request now; returns its lag in seconds behind `due_s`, a moment of `perf_counter`."""
        sent_s = perf_counter()
        target = self._next_target()
        exchange = Exchange(target.request(body), self._new_scan(), lambda: self._over(job))
        exchange.sent_s = sent_s
        job = _Job(target, exchange, max(0.0, sent_s - due_s))
        job.timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, job)
        self._jobs.add(job)
        self._dispatch(job)
        return job.lag_s

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        while self._jobs:
            self._all_over.clear()
            await self._all_over.wait()

    async def close(self) -> None:
        """Abandon what is in flight without reporting it, and close every connection."""
        self._is_closed = True
        tasks = [job.connecting for job in self._jobs if job.connecting is not None]
        for job in self._jobs:
            if job.timer is not None:
                job.timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def _dispatch(self, job: _Job) -> None:
        idle = job.target.idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                self._carry(job, connection)
                return
        job.connecting = asyncio.create_task(self._connect(job))

    def _carry(self, job: _Job, connection: Connection) -> None:
        job.connection = connection
        self._connections[connection] = job
        connection.send(job.exchange)

    async def _connect(self, job: _Job) -> None:
        target = job.target
        connection = Connection(target.idle.append, partial(self._lost, target))
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                target.host,
                target.port,
                ssl=ssl.create_default_context() if target.is_tls else None,
            )
        except (OSError, UnicodeError) as error:
            job.exchange.end(Failure("connect", one_line(f"{target.host}:{target.port}: {error}")))
        finally:
            job.connecting = None
            if connection.is_open:
                self._connections[connection] = None
                if job.exchange.is_over or self._is_closed:
                    connection.close()
        if connection.is_open:
            self._carry(job, connection)

    def _lost(self, target: Target, connection: Connection, exchange: Exchange | None) -> None:
        """A connection is gone, perhaps with an exchange unanswered."""
        job = self._connections.pop(connection, None)
        if connection in target.idle:
            target.idle.remove(connection)
        if not self._connections:
            self._all_gone.set()
        if exchange is None or job is None or self._is_closed:
            return
        was_idle = connection.was_used and perf_counter() - exchange.sent_s < _STALE_S
        if exchange.status is None and was_idle and not job.is_second_try:
            job.is_second_try = True
            job.connecting = asyncio.create_task(self._connect(job))
        else:
            exchange.end(Failure("broken stream", _how_far(exchange)))

    def _expire(self, job: _Job) -> None:
        if job.connecting is not None:
            job.connecting.cancel()
        if job.connection is not None:
            job.connection.close()
        job.exchange.end(Failure("timeout", f"not over after {self._timeout_s:g} s: {_how_far(job.exchange)}"))

    def _over(self, job: _Job) -> None:
        if job.timer is not None:
            job.timer.cancel()
        self._jobs.discard(job)
        if not self._jobs:
            self._all_over.set()
        self._on_outcome(outcome_of(job.exchange, job.lag_s))


def outcome_of(exchange: Exchange, lag_s: float) -> Outcome:
    """The outcome of an exchange that is over."""
    scan = exchange.scan
    failure, prompt_tokens, output_tokens = exchange.failure, None, None
    if failure is None:
        verdict = scan.verdict()
        failure, prompt_tokens, output_tokens = verdict.failure, verdict.prompt_tokens, verdict.output_tokens
    e2e_s = exchange.ended_s - exchange.sent_s
    ttft_s = None if exchange.first_s is None else exchange.first_s - exchange.sent_s
    tpot_s = None
    if failure is None and ttft_s is not None and output_tokens is not None and output_tokens > 1:
        tpot_s = (e2e_s - ttft_s) / (output_tokens - 1)
    return Outcome(
        lag_s=lag_s,
        e2e_s=e2e_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        bytes_received=scan.bytes_received,
        instance=exchange.instance,
        failure=failure,
    )


def _how_far(exchange: Exchange) -> str:
    if exchange.status is None:
        return "no answer began"
    if exchange.first_s is None:
        return f"status {exchange.status}, no content"
    return f"broke off after {exchange.scan.bytes_received} bytes"
