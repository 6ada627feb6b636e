import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import COMMANDS, forebay, status_of
from deploy.ports import free_ports


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process and return its status, output and errors."""
    status = status_of(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No variable and no file of the machine reaches a test."""
    for name in os.environ:
        if name.startswith("FOREBAY_") or name == "RUN_S":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prxy",), ["prxy"]),
        (("proxy", "--port", "99999"), ["forebay proxy: --port", "99999", "0 to 65535"]),
        (("worker",), ["forebay worker: --instance is missing", "FOREBAY_WORKER_INSTANCE"]),
        (("worker", "--engine", "nonsense"), ["nonsense", "[ID=]URL"]),
        (("worker", "--engine", "a=http://h:1", "--engine", "a=http://h:2"), ["two engines are called 'a'"]),
        (
            ("worker", "--engine", "http://h:1", "--engine-key-file", "/nowhere/key"),
            ["--engine-key-file", "/nowhere/key"],
        ),
        (
            ("worker", "--engine", "http://h:1", "--engine-kind", "steam"),
            ["--engine-kind: 'steam'", "one of auto, vllm"],
        ),
        (("proxy", "--strategy", "luck"), ["--strategy: 'luck'", "round_robin"]),
        (("proxy", "--log-level", "loud"), ["--log-level: 'loud'", "one of debug, info, warning, error"]),
        (("up", "--strategy", "luck"), ["--strategy: 'luck'", "least_load"]),
        (("up", "--port", "9000", "--admin-port", "9001", "--replicas", "2"), ["share port 9001"]),
        (("up", "--engine", "sim-1=http://h:1", "--sim", "2"), ["two engines are called 'sim-1'"]),
        (("up", "--redis", "http://h:1"), ["--redis", "http://h:1"]),
        (("engine", "--port", "65535", "--count", "2"), ["--count", "65535"]),
        (("worker", "--port", "65535", "--engine", "http://h:1", "--engine", "http://h:2"), ["--port", "65535"]),
        (("engine", "--token-budget", "1"), ["token_budget"]),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(capsys, arguments, words):
    """No traceback, no usage text: one line on standard error that names what is wrong."""
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[prxy]", ["unknown table [prxy]", "did you mean proxy?"]),
        ("[proxy]\nadmin-port = 1", ["unknown key admin-port in [proxy]", "did you mean admin_port?"]),
        ("[proxy.weight]\ninflght = 1", ["unknown key weight.inflght", "did you mean weight.inflight?"]),
        ("[proxy]\nport = 70000", ["--port: 70000", "0 to 65535", "port in [proxy] of forebay.toml"]),
        ("proxy = 1", ["must be a table"]),
        ("x =", ["not valid TOML"]),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line_that_names_it(capsys, tmp_path, text, words):
    """forebay.toml in the working folder is read; an unknown name is answered with the nearest known one."""
    (tmp_path / "forebay.toml").write_text(text)
    status, _, err = run(capsys, "proxy")
    assert status == 2
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ('[worker]\ninstance = "nonsense"', ("worker",), ["--instance: 'nonsense'", "instance in [worker]"]),
        ('[replay]\ntarget = "nonsense"', ("replay", "conv-sample"), ["nonsense: a target is http://HOST:PORT"]),
        ('[why]\ntarget = "nonsense"', ("why", "r1"), ["--target", "nonsense: must be http://HOST:PORT"]),
        ("[worker]\ninstance = 5", ("worker",), ["--instance: 5 is not allowed"]),
    ],
)
def test_a_single_value_of_the_file_is_a_list_of_one(capsys, tmp_path, text, arguments, words):
    """`target = "x"` means what it seems to mean, in every table."""
    (tmp_path / "forebay.toml").write_text(text)
    _, _, err = run(capsys, *arguments)
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    "arguments",
    [
        ("engine", "--host", "a..b", "--port", "18001"),
        ("proxy", "--redis", "redis://127.0.0.1:1", "--port", "18001", "--admin-port", "0", "--host", "a..b"),
        ("proxy", "--redis", "redis://127.0.0.1:1", "--port", "0", "--admin-port", "18001", "--admin-host", "a..b"),
    ],
)
def test_a_host_that_is_no_name_is_said_in_one_line(arguments):
    """No traceback for what cannot even be looked up."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli", *arguments],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("forebay: cannot listen on a..b:18001: not a host name\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_of_the_run_that_cannot_be_made_is_said_in_one_line(capsys, tmp_path, name):
    """A file is where the folder should be, or above it."""
    (tmp_path / "file").touch()
    port, admin_port = free_ports(2)
    words = ("--port", str(port), "--admin-port", str(admin_port), "--replicas", "1", "--run-dir", name)
    status, out, err = run(capsys, "up", *words)
    assert (status, out) == (1, "")
    assert err.startswith(f"forebay: {name} cannot be made: ")
    assert err.count("\n") == 1


def test_a_file_that_is_named_and_missing_is_an_error(capsys):
    """A misspelled path must not be silently ignored."""
    status, _, err = run(capsys, "--config", "nowhere.toml", "proxy")
    assert (status, err) == (2, "forebay: nowhere.toml: No such file or directory\n")


def test_the_file_can_be_named_by_a_variable(capsys, monkeypatch, tmp_path):
    """FOREBAY_CONFIG names the file."""
    (tmp_path / "other.toml").write_text("[proxy]\nport = 70000")
    monkeypatch.setenv("FOREBAY_CONFIG", "other.toml")
    assert "of other.toml" in run(capsys, "proxy")[2]


def test_a_password_in_a_refused_url_is_not_repeated(capsys):
    """What is printed ends up in logs."""
    _, _, err = run(capsys, "up", "--redis", "redsi://user:secret@host")
    assert "secret" not in err
    assert "redsi://user:***@host" in err


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_command_of_the_table_exists_and_has_an_example(capsys, name):
    """The table that keeps --help fast names real commands, and each of them shows how it is used."""
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert f"forebay {name}" in out.partition("Options:")[2]


def test_help_imports_no_command():
    """`forebay --help` shows every command without loading one."""
    code = (
        "import sys; from deploy.cli import status_of; status_of(['--help']);"
        "print([name for name in sys.modules if name.startswith('deploy.commands.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.endswith("[]\n")
    assert all(entry.summary in done.stdout for entry in COMMANDS.values())


def test_version_is_printed(capsys):
    """--version prints name and version."""
    status, out, _ = run(capsys, "--version")
    assert status == 0
    assert out.startswith("forebay ")


def test_a_command_that_cannot_be_loaded_is_an_error_only_when_called(capsys, monkeypatch):
    """A broken installation of one command does not take the others with it."""
    monkeypatch.setitem(forebay.table, "top", COMMANDS["top"].__class__("deploy.commands.gone:top", "Gone."))
    assert run(capsys, "--help")[0] == 0
    status, _, err = run(capsys, "top")
    assert status == 1
    assert err.startswith("forebay: top: cannot be loaded here")
    assert err.count("\n") == 1
