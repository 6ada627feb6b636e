from typing import Annotated, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from deploy.complaint import one_line
from deploy.options import Spelling, configured


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    inflight: Annotated[float, Meta(ge=0, le=10, description="Weight of what is in flight.")] = 1.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    port: Annotated[int, Meta(ge=1, le=65535, description="Port to listen on.")] = 8000
    limit_s: Annotated[float, Meta(gt=0, le=60, description="Longest wait, s.")] = 5.0
    is_loud: Annotated[bool, Meta(description="Say everything.")] = False
    pool: Annotated[tuple[Annotated[str, Meta(pattern=r"^[a-z]+$")], ...], Meta(min_length=1, description="Pools.")] = (
        "a",
    )
    kind: Annotated[Literal["auto", "vllm"], Meta(description="Kind.")] = "auto"
    name: Annotated[str, Meta(description="Name.")] = ""
    weight: Weights = Weights()
    pairs: Annotated[tuple[int, ...], Meta(description="Parsed.")] = ()

    def __post_init__(self) -> None:
        if self.port == 1313:
            raise ValueError("port 1313 brings bad luck")


def parsed_pair(text: str) -> int:
    """Return the sum of A+B."""
    left, sign, right = text.partition("+")
    if not sign or not (left + right).isdigit():
        raise ValueError("A+B")
    return int(left) + int(right)


@click.command()
@configured(Config, pairs=Spelling(flags=("--pair", "--sum"), metavar="A+B", parse=parsed_pair))
def command(config: Config) -> Config:
    """Return what was read."""
    return config


def read(*arguments: str, table: dict[str, object] | None = None) -> Config:
    """Run the command with a table of the file as its defaults, and return what it was given."""
    return command.main(
        list(arguments),
        prog_name="test",
        standalone_mode=False,
        auto_envvar_prefix="T",
        **({"default_map": table} if table else {}),
    )


def complaint(*arguments: str, table: dict[str, object] | None = None) -> str:
    """Return the line that a wrong value gives."""
    with pytest.raises(click.UsageError) as caught:
        read(*arguments, table=table)
    return one_line(caught.value)


def test_defaults_are_those_of_the_struct():
    """Without flags, variables and file the struct's own defaults hold."""
    assert read() == Config()


def test_every_type_can_be_given_as_a_flag():
    """Numbers, switches, repeated values, choices, nested fields and parsed values come from flags."""
    flags = "--port 1 --limit-s 0.5 --is-loud --pool x --pool y --kind vllm --name n"
    flags += " --weight-inflight 2 --pair 1+2 --sum 3+4"
    assert read(*flags.split()) == Config(
        port=1,
        limit_s=0.5,
        is_loud=True,
        pool=("x", "y"),
        kind="vllm",
        name="n",
        weight=Weights(inflight=2.0),
        pairs=(3, 7),
    )


def test_every_type_can_be_given_as_a_variable(monkeypatch):
    """The same fields come from variables; repeated values are separated by spaces."""
    values = {"PORT": "2", "IS_LOUD": "yes", "POOL": "x y", "KIND": "vllm", "WEIGHT_INFLIGHT": "3", "PAIR": "1+1 2+2"}
    for name, value in values.items():
        monkeypatch.setenv(f"T_{name}", value)
    assert read() == Config(
        port=2, is_loud=True, pool=("x", "y"), kind="vllm", weight=Weights(inflight=3.0), pairs=(2, 4)
    )


def test_a_later_surface_wins(monkeypatch):
    """The file beats the default, a variable beats the file, a flag beats the variable."""
    table: dict[str, object] = {"port": 10}
    assert read(table=table).port == 10
    monkeypatch.setenv("T_PORT", "20")
    assert read(table=table).port == 20
    assert read("--port", "30", table=table).port == 30


def test_a_switch_of_the_file_is_switched_off_by_a_flag():
    """--no-x undoes a true of the file."""
    assert read(table={"is_loud": True}).is_loud
    assert not read("--no-is-loud", table={"is_loud": True}).is_loud


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--port", "0"), "test: --port: '0' is not allowed: a whole number, 1 to 65535"),
        (("--port", "8.5"), "test: --port: '8.5' is not allowed: a whole number, 1 to 65535"),
        (("--limit-s", "nan"), "test: --limit-s: 'nan' is not allowed: a number, above 0, up to 60"),
        (("--limit-s", "inf"), "test: --limit-s: 'inf' is not allowed: a number, above 0, up to 60"),
        (("--limit-s", "0"), "test: --limit-s: '0' is not allowed: a number, above 0, up to 60"),
        (("--pool", "X"), "test: --pool: 'X' is not allowed: text, matching ^[a-z]+$, repeatable, at least 1"),
        (("--kind", "tgi"), "test: --kind: 'tgi' is not allowed: one of auto, vllm"),
        (("--weight-inflight=-1",), "test: --weight-inflight: '-1' is not allowed: a number, 0 to 10"),
        (("--pair", "x"), "test: --pair: 'x' is not allowed: A+B"),
        (("--port", "1313"), "test: port 1313 brings bad luck"),
        (("--prt", "1"), "test: No such option '--prt'."),
        (("stray",), "test: Got unexpected extra argument (stray)"),
    ],
)
def test_a_wrong_flag_gives_one_line(arguments, line):
    """The line names the option, the value and what is allowed."""
    assert complaint(*arguments).partition(" (Did you mean")[0] == line


@pytest.mark.parametrize(
    ("table", "start"),
    [
        ({"port": "x"}, "test: --port: 'x' is not allowed"),
        ({"port": True}, "test: --port: True is not allowed"),
        ({"port": 1.5}, "test: --port: 1.5 is not allowed"),
        ({"port": [1]}, "test: --port: 1 is not allowed"),
        ({"is_loud": 3}, "test: --is-loud: 3 is not allowed: true or false"),
        ({"pool": []}, "test: --pool: an empty list is not allowed"),
        ({"pool": [1]}, "test: --pool: 1 is not allowed"),
        ({"name": 5}, "test: --name: 5 is not allowed: text"),
        ({"pair": [5]}, "test: --pair: 5 is not allowed: text, A+B"),
    ],
)
def test_a_wrong_value_of_the_file_gives_one_line_that_names_the_table(table, start):
    """TOML has types of its own; one that does not fit is refused, and the line says where it stands."""
    line = complaint(table=table)
    assert line.startswith(start)
    assert f"from {next(iter(table))} in [test]" in line


def test_a_wrong_variable_is_named(monkeypatch):
    """The line says which variable held the value."""
    monkeypatch.setenv("T_PORT", "many")
    assert complaint() == "test: --port: 'many' is not allowed: a whole number, 1 to 65535 (from T_PORT)"


def test_help_shows_default_range_and_variable():
    """--help teaches everything that the struct knows."""
    text = " ".join(CliRunner().invoke(command, ["--help"], auto_envvar_prefix="T").output.split())
    assert "Port to listen on. [env var: T_PORT; default: 8000; 1 to 65535]" in text
    assert "--weight-inflight X Weight of what is in flight." in text
    assert "--pair, --sum A+B" in text


@given(
    st.text(max_size=20) | st.integers() | st.floats() | st.booleans() | st.lists(st.integers() | st.text(max_size=3))
)
def test_any_value_of_the_file_is_taken_or_refused_in_one_line(value):
    """Nothing that TOML can hold gives a traceback, and a number that is taken is in its range."""
    for key in ("port", "limit_s", "pool", "is_loud", "weight_inflight"):
        try:
            config = read(table={key: value})
        except click.UsageError as error:
            line = one_line(error)
            assert line.count("\n") == 0  # refused or taken: both are right here
        else:
            assert 1 <= config.port <= 65535
            assert 0 < config.limit_s <= 60
            assert 0 <= config.weight.inflight <= 10
            assert config.pool
