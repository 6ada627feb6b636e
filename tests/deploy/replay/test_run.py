import asyncio

import pytest

from deploy.replay.client import Target
from deploy.replay.prompts import PromptMaker
from deploy.replay.run import TargetUnavailableError, first_model, replay
from deploy.replay.schedule import Due
from deploy.replay.traces import TraceError, TraceRow
from tests.deploy.replay.conftest import stream_well

PROMPTS = PromptMaker("tiny")


def dues(count: int, gap_s: float) -> list[Due]:
    """Small requests at a steady pace."""
    return [Due(number * gap_s, TraceRow(0.0, 8, 3)) for number in range(count)]


async def test_everything_sent_is_answered_and_counted(server):
    """A replay against a healthy server reports every request, its tokens, its instance and no error."""
    report = await replay(dues(20, 0.002), PROMPTS, [Target(server.url)], stop=asyncio.Event())
    assert (report.sent, report.answered, report.failed, report.unfinished) == (20, 20, 0, 0)
    assert (report.output_tokens, report.instances, report.errors) == (60, {"e1": 20}, {})
    assert report.ttft_ms is not None
    assert report.ttft_ms.n == 20


async def test_stalled_server_does_not_slow_the_sending(server):
    """No coordinated omission: while nothing is answered, all requests still leave, at their own times.

    The server answers nobody before it has all thirty; a client that waited for answers would never send the second.
    """
    everything_is_here, clock = asyncio.Event(), asyncio.get_running_loop().time
    arrived_s: list[float] = []

    async def answer_when_all_are_here(writer, body, number):
        arrived_s.append(clock())
        if len(server.bodies) == 30:
            everything_is_here.set()
        await everything_is_here.wait()
        await stream_well(writer, body, number)

    server.answer = answer_when_all_are_here
    async with asyncio.timeout(20):
        report = await replay(dues(30, 0.01), PROMPTS, [Target(server.url)], stop=asyncio.Event())
    assert (report.answered, report.failed) == (30, 0)
    # The first request waited for the last, and its TTFT says so: by the server's clock, since a busy machine may send
    # either of them later than it was due.
    assert report.ttft_ms is not None
    assert report.ttft_ms.max >= (arrived_s[-1] - arrived_s[0]) * 1000 - 1


async def test_stop_reports_what_was_done(server):
    """Stopped, a replay returns at once; what is in flight is unfinished, not failed."""

    async def answer_two(writer, body, number):
        if number >= 2:
            await asyncio.Event().wait()
        await stream_well(writer, body, number)

    server.answer = answer_two
    stop = asyncio.Event()
    running = asyncio.create_task(replay(dues(4, 0.001), PROMPTS, [Target(server.url)], stop=stop))
    await server.received(4)
    stop.set()
    report = await running
    assert (report.sent, report.failed) == (4, 0)
    assert report.answered + report.unfinished == 4
    assert report.unfinished >= 2


async def test_progress_ends_with_the_whole(server):
    """Progress lines count up, and the last one has everything."""
    lines = []
    await replay(
        dues(10, 0.005),
        PROMPTS,
        [Target(server.url)],
        stop=asyncio.Event(),
        on_progress=lines.append,
        progress_every_s=0.01,
    )
    assert [line.done for line in lines] == sorted(line.done for line in lines)
    assert (lines[-1].sent, lines[-1].done, lines[-1].errors) == (10, 10, 0)
    assert lines[-1].ttft_p50_ms is not None


async def test_bad_row_in_the_middle_ends_the_replay(server):
    """A trace that turns out to be damaged raises its own error and leaves no connection open."""

    def damaged():
        yield from dues(2, 0.0)
        raise TraceError("trace.csv: row 3: bad")

    with pytest.raises(TraceError, match="row 3"):
        await replay(damaged(), PROMPTS, [Target(server.url)], stop=asyncio.Event())


async def test_first_model_is_asked_until_it_is_there(server):
    """A target that is still starting is asked again."""
    answers = [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"]
    body = b'{"data":[{"id":"tiny"},{"id":"other"}]}'
    answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def models(writer, _body, number):
        writer.write(answers[number])

    server.answer = models
    assert await first_model(Target(server.url), deadline_s=10) == "tiny"


async def test_target_without_models_is_named(server):
    """After the deadline the error says which URL was asked and what it did instead."""

    async def none(writer, _body, _number):
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}')

    server.answer = none
    with pytest.raises(TargetUnavailableError, match=r"/v1/models: no model within .*it names no model"):
        await first_model(Target(server.url), deadline_s=0.1)
