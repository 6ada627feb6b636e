import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from deploy.cluster.processes import Death, Part, PartProcess
from deploy.cluster.supervision import Policy

POLICY = Policy(first_pause_s=0.01, ending_s=5.0)

SLEEPER = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
PARENT = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); raise SystemExit(1)"


def python(name: str, code: str, policy: Policy = POLICY, *, is_repeated: bool = False) -> Part:
    """Return a part that runs a few lines of Python."""
    command = (sys.executable, "-I", "-S", "-c", code)
    return Part(name=name, command=command, policy=policy, is_repeated=is_repeated)


async def until(condition, limit_s: float = 10.0) -> None:
    """Wait until something can be observed, or fail."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 # another process has no event to wait for
            await asyncio.sleep(0.005)


def is_up(process: PartProcess) -> bool:
    """Return whether the part has said that it runs."""
    return process.pid is not None and process.log.last_lines(1) == ["up"]


def is_gone(pid: int) -> bool:
    """Return whether no such process is left, not even a zombie."""
    return not psutil.pid_exists(pid)


def is_dead(pid: int) -> bool:
    """Return whether a process that is not ours to reap no longer runs."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.asynccontextmanager
async def supervised(process: PartProcess) -> AsyncIterator[asyncio.Task[None]]:
    """Supervise a part in the background, and stop it at the end."""
    task = asyncio.create_task(process.run())
    try:
        yield task
    finally:
        process.stop()
        async with asyncio.timeout(10):
            await task


async def test_a_part_that_dies_is_started_again_and_its_last_words_are_told(tmp_path):
    """A killed part comes back as a new process; the death says how it ended and what it said."""
    deaths: list[Death] = []
    process = PartProcess(python("part", SLEEPER), tmp_path, on_death=deaths.append)
    async with supervised(process):
        await until(lambda: is_up(process))
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.pid not in {None, first})
        assert is_gone(first)
        assert process.supervision.restarts == 1
    assert [(death.name, death.status, death.last_lines) for death in deaths] == [("part", -signal.SIGKILL, ("up",))]
    assert "was killed by SIGKILL" in str(deaths[0])


async def test_stop_leaves_no_process(tmp_path):
    """A part that is stopped ends on SIGTERM, is not started again, and its end is no death."""
    deaths: list[Death] = []
    process = PartProcess(python("part", SLEEPER), tmp_path, on_death=deaths.append)
    async with supervised(process) as task:
        await until(lambda: is_up(process))
        pid = process.pid
        assert pid is not None
        process.stop()
        await task
        assert is_gone(pid)
        assert process.pid is None
        assert process.supervision.last_status == -signal.SIGTERM
    assert deaths == []


async def test_a_part_that_ignores_sigterm_is_killed(tmp_path):
    """What does not end in its time is killed."""
    process = PartProcess(python("part", STUBBORN, Policy(ending_s=0.05)), tmp_path)
    async with supervised(process) as task:
        await until(lambda: is_up(process))
        process.stop()
        await task
    assert process.supervision.last_status == -signal.SIGKILL


async def test_haste_kills_a_part_that_would_take_its_time(tmp_path):
    """A second Ctrl-C does not wait for the bound."""
    process = PartProcess(python("part", STUBBORN, Policy(ending_s=600.0)), tmp_path)
    async with supervised(process) as task:
        await until(lambda: is_up(process))
        process.stop()
        await until(lambda: process.supervision.is_asked_to_end)
        process.hurry()
        await task
    assert process.supervision.last_status == -signal.SIGKILL


async def test_a_supervisor_that_is_cancelled_leaves_no_process(tmp_path):
    """However `run` ends, its process is gone."""
    process = PartProcess(python("part", STUBBORN), tmp_path)
    task = asyncio.create_task(process.run())
    await until(lambda: is_up(process))
    pid = process.pid
    assert pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(pid)


async def test_what_a_dead_part_had_started_is_ended_too(tmp_path):
    """A part's own children do not outlive it: its whole session is ended."""
    process = PartProcess(python("part", PARENT, Policy(first_pause_s=600.0)), tmp_path)
    async with supervised(process):
        await until(lambda: process.supervision.state == "waiting" and process.supervision.last_status == 1)
        (line,) = process.log.last_lines(1)
        await until(lambda: is_dead(int(line)))


async def test_a_program_that_does_not_exist_is_a_death_with_words(tmp_path):
    """The message of the failed start is in the log, where people look."""
    deaths: list[Death] = []
    part = Part(name="part", command=("/nowhere/program",), policy=Policy(first_pause_s=600.0))
    process = PartProcess(part, tmp_path, on_death=deaths.append)
    async with supervised(process):
        await until(lambda: bool(deaths))
    assert deaths[0].last_lines == ("/nowhere/program: No such file or directory",)


async def test_a_part_whose_log_cannot_be_written_is_tried_again(tmp_path):
    """Neither its log nor the message of the failed start can be written while the folder is away."""
    deaths: list[Death] = []
    folder = tmp_path / "away"
    process = PartProcess(python("part", SLEEPER), folder, on_death=deaths.append)
    async with supervised(process):
        await until(lambda: bool(deaths))
        folder.mkdir()
        await until(lambda: is_up(process))


async def test_a_part_that_is_stopped_while_it_is_launched_leaves_no_process(tmp_path, monkeypatch):
    """The stop comes before there is a process; it holds for the one that is there then."""
    process = PartProcess(python("part", SLEEPER), tmp_path)
    launch, pids = asyncio.create_subprocess_exec, []

    async def stopped_meanwhile(*words, **settings):
        process.stop()
        launched = await launch(*words, **settings)
        pids.append(launched.pid)
        return launched

    monkeypatch.setattr(asyncio, "create_subprocess_exec", stopped_meanwhile)
    async with asyncio.timeout(10):
        await process.run()
    assert [is_gone(pid) for pid in pids] == [True]


async def test_a_part_that_is_stopped_while_its_launch_fails_is_not_called_dead(tmp_path, monkeypatch):
    """Nobody wants it any more, so that its failure is no news."""
    deaths: list[Death] = []
    process = PartProcess(python("part", SLEEPER), tmp_path, on_death=deaths.append)

    async def fails_meanwhile(*_words, **_settings):
        process.stop()
        raise OSError("no more processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails_meanwhile)
    async with asyncio.timeout(10):
        await process.run()
    assert deaths == []


async def test_a_repeated_part_begins_anew_without_being_called_dead(tmp_path):
    """A round of traffic that ends well is followed by the next."""
    deaths: list[Death] = []
    process = PartProcess(python("part", "print('round')", is_repeated=True), tmp_path, on_death=deaths.append)
    async with supervised(process):
        await until(lambda: process.log.last_lines(9).count("round") >= 2)
    assert (deaths, process.supervision.restarts) == ([], 0)


async def test_parts_do_not_hear_the_terminal(tmp_path):
    """Each part has a session of its own, so Ctrl-C reaches the supervisor alone."""
    process = PartProcess(python("part", SLEEPER), tmp_path)
    async with supervised(process):
        await until(lambda: is_up(process))
        assert process.pid is not None
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
