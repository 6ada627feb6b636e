import asyncio
import json
import signal
import sys

import pytest
from click.testing import CliRunner

from deploy.commands.replay import replay
from tests.deploy.replay.conftest import stream_well

pytestmark = pytest.mark.processes


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Start `forebay replay` with piped output."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from deploy.commands.replay import replay; replay()",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Wait for a process; return its status and what it wrote."""
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_sample_is_replayed_with_status_zero(server, tmp_path):
    """A sample by its name, rescaled, limited: answered in full, reported as text, as JSON and as progress lines."""
    report, progress = tmp_path / "report.json", tmp_path / "progress"
    process = await start(
        "conv-sample", "--target", server.url, "--model", "tiny", "--rate", "200", "--limit", "30",
        "--json", str(report), "--progress-file", str(progress),
    )  # fmt: skip
    status, out, err = await ended(process)
    assert (status, err) == (0, "")
    assert "30 of 30 requests answered" in out
    assert json.loads(report.read_bytes())["answered"] == 30
    assert json.loads(progress.read_text().splitlines()[-1])["done"] == 30


async def test_any_error_is_status_one(server):
    """One failed request makes the exit status 1, and the report names its class."""

    async def refuse_first(writer, body, number):
        if number == 0:
            writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy")
        else:
            await stream_well(writer, body, number)

    server.answer = refuse_first
    process = await start("conv-sample", "--target", server.url, "--model", "tiny", "--rate", "200", "--limit", "3")
    status, out, _ = await ended(process)
    assert status == 1
    assert "status 503" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_with_the_report(server, number):
    """Interrupted, it reports what was done."""

    async def hang(_writer, _body, _number):
        await asyncio.Event().wait()

    server.answer = hang
    process = await start("conv-sample", "--target", server.url, "--model", "tiny", "--rate", "50", "--loop")
    await server.received(2)
    process.send_signal(number)
    status, out, err = await ended(process)
    assert (status, err) == (0, "")
    assert "unfinished when stopped" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_the_wait_for_a_model(server, number):
    """Nothing has been sent yet, so there is no report: one line says so."""

    async def hang(_writer, _body, _number):
        await asyncio.Event().wait()

    server.answer = hang
    process = await start("conv-sample", "--target", server.url, "--model-wait", "60")
    await server.received(1)
    process.send_signal(number)
    assert await ended(process) == (1, "", f"Error: stopped before {server.url} named a model\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.csv", "--target", "http://127.0.0.1:1"], "nowhere.csv: cannot be read"),
        (["conv-sample"], "--target"),
        (["conv-sample", "--target", "127.0.0.1:8000"], "a target is http://HOST:PORT"),
        (["conv-sample", "--target", "http://127.0.0.1:1", "--speedup", "0"], "--speedup"),
        (["conv-sample", "--target", "http://127.0.0.1:1", "--speedup", "2", "--rate", "2"], "exclude each other"),
        (["conv-sample", "--target", "http://127.0.0.1:1", "--start", "2000"], "no rows from --start 2000 on"),
        (["conv-sample", "--target", "http://127.0.0.1:1", "--model-wait", "0"], "no model within 0 s"),
        (
            ["conv-sample", "--target", "http://127.0.0.1:1", "--json", "/nowhere/x", "--model", "m", "--limit", "1"],
            "/nowhere",
        ),
    ],
)
def test_impossible_wishes_are_refused(arguments, complaint):
    """What cannot work is said before anything is sent."""
    result = CliRunner().invoke(replay, arguments)
    assert result.exit_code in (1, 2)
    assert complaint in result.output
    assert "Traceback" not in result.output
