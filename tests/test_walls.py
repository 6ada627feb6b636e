"""The walls of the house: which way imports run, what pure code may not know, and what every test says of itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("bus", "proxy", "workers", "deploy")

#: Who may not import whom: the packages on the right are unknown to the one on the left.
FORBIDDEN = {
    "bus": {"proxy", "workers", "deploy"},
    "proxy": {"workers", "deploy"},
    "workers": {"proxy", "deploy"},
    "deploy": set(),
}

#: Pure code: time, chance and the outside world are arguments.
PURE = (
    "bus/record.py",
    "bus/registration.py",
    "bus/view.py",
    "bus/keys.py",
    "bus/errors.py",
    "bus/in_transit.py",
    "workers/timeline.py",
    "workers/calibration.py",
    "workers/estimates.py",
    "proxy/keys.py",
    "proxy/networks.py",
    "proxy/ladder.py",
    "proxy/dashboard/history.py",
    "proxy/strategies/*.py",
    "deploy/engine/batching.py",
    "deploy/cluster/supervision.py",
)
IMPURE = {
    "asyncio",
    "redis",
    "aiohttp",
    "time",
    "datetime",
    "random",
    "httptools",
    "uvloop",
    "socket",
    "threading",
    "secrets",
    "os",
}

#: Of the pure modules those that are not written yet. Empty this, and a missing one fails.
NOT_YET: frozenset[str] = frozenset()


class Import:
    """One import statement: of what, where, and whether it is there for types only."""

    def __init__(self, module: str, path: str, line: int, *, is_typing_only: bool, names: tuple[str, ...]) -> None:
        self.module, self.path, self.line = module, path, line
        self.top = module.partition(".")[0]
        self.is_typing_only = is_typing_only
        self.names = names

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def imports_of(root: Path, path: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions and those for types only too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for inner in ast.walk(statement)
    }
    where = path.relative_to(root)
    for node in ast.walk(tree):
        more = {"is_typing_only": id(node) in typing_only}
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, str(where), node.lineno, names=(), **more)
        elif isinstance(node, ast.ImportFrom):
            folder = where.parts[: len(where.parts) - node.level] if node.level else ()
            module = ".".join((*folder, node.module) if node.module else folder)
            names = tuple(alias.name for alias in node.names)
            yield Import(module, str(where), node.lineno, names=names, **more)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(name := node.args[0], ast.Constant)
            and is_import(node)
        ):
            yield Import(str(name.value), str(where), node.lineno, names=(), **more)


def is_import(call: ast.Call) -> bool:
    """Whether a call imports the module that it names."""
    return ast.unparse(call.func) in {"importlib.import_module", "import_module", "__import__"}


def files_of(root: Path, package: str) -> list[Path]:
    """Every Python file of a package."""
    return sorted((root / package).rglob("*.py"))


def broken_directions(root: Path) -> list[str]:
    """Imports that run the wrong way."""
    return [
        str(found)
        for package, unknown in FORBIDDEN.items()
        for path in files_of(root, package)
        for found in imports_of(root, path)
        if found.top in unknown
    ]


def broken_purity(root: Path) -> list[str]:
    """Imports of the outside world by pure modules, and sources of chance that they make themselves."""
    return [
        broken
        for path in pure_files(root)
        for broken in (*(str(found) for found in imports_of(root, path) if is_impure(found)), *own_chance(root, path))
    ]


def is_impure(found: Import) -> bool:
    """Whether an import lets the outside world in; `Random` as the type of an argument does not."""
    if found.top == "random" and (found.names == ("Random",) or (found.is_typing_only and not found.names)):
        return False
    return found.top in IMPURE


def own_chance(root: Path, path: Path) -> list[str]:
    """Where a file makes a `Random` of its own, instead of being handed one."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return [
        f"{path.relative_to(root)}:{call.lineno} makes its own source of chance"
        for call in calls
        if ast.unparse(call.func) in {"Random", "random.Random"}
    ]


def pure_files(root: Path) -> list[Path]:
    """The pure modules that exist."""
    return [path for pattern in PURE for path in sorted(root.glob(pattern))]


def missing_pure(root: Path) -> list[str]:
    """Pure modules that are named above and do not exist: renamed, and so unguarded."""
    return [pattern for pattern in PURE if pattern not in NOT_YET and not any(root.glob(pattern))]


def broken_bus(root: Path) -> list[str]:
    """HTTP in the bus outside its hop, and Redis inside the hop."""
    broken = []
    for path in files_of(root, "bus"):
        is_hop = path.is_relative_to(root / "bus" / "hop")
        unknown = {"redis", "fakeredis"} if is_hop else {"aiohttp", "httptools"}
        broken += [str(found) for found in imports_of(root, path) if found.top in unknown]
    return broken


def drawers(root: Path) -> list[str]:
    """Modules whose name says nothing."""
    nameless = {"utils", "util", "helpers", "helper", "misc", "common"}
    return [
        str(path.relative_to(root))
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.stem in nameless and (path.is_dir() or path.suffix == ".py")
    ]


def silent_tests(root: Path) -> list[str]:
    """Tests whose docstring does not begin with exactly one sentence; a second paragraph may say why."""
    silent = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                says = (ast.get_docstring(node) or "").partition("\n\n")[0]
                if not is_one_sentence(says):
                    silent.append(f"{path.relative_to(root)}:{node.lineno} {node.name}")
    return silent


def is_one_sentence(text: str) -> bool:
    """Whether a text ends with its only full stop.

    >>> is_one_sentence("It is so."), is_one_sentence("It is. It is."), is_one_sentence("It is")
    (True, False, False)
    """
    return text.endswith(".") and not re.search(r"[.!?]\s+[A-Z]", text)


def plant(root: Path, path: str, text: str) -> None:
    """Write one file of a small tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


# --- the house as it stands


def test_imports_run_one_way():
    """Deploy knows all, proxy and workers know only the bus, and the bus knows none of them."""
    assert broken_directions(ROOT) == []


def test_pure_code_knows_neither_clock_nor_chance_nor_the_outside_world():
    """What decides gets time and random numbers as arguments."""
    assert broken_purity(ROOT) == []


def test_every_pure_module_is_there():
    """A pure module that was renamed is not left unguarded."""
    assert missing_pure(ROOT) == []


def test_nothing_is_called_not_yet_that_is_already_there():
    """The list of what is to come holds only what is to come."""
    assert [pattern for pattern in NOT_YET if any(ROOT.glob(pattern))] == []


def test_the_bus_speaks_redis_and_its_hop_speaks_http():
    """Neither knows the other's language."""
    assert broken_bus(ROOT) == []


def test_no_module_is_a_drawer():
    """A module is named after what it owns."""
    assert drawers(ROOT) == []


def test_every_test_says_in_one_sentence_what_it_shows():
    """The tests are the specification, and can be read as one."""
    assert silent_tests(ROOT) == []


# --- the walls themselves


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("bus/reader.py", "import proxy.app"),
        ("bus/reader.py", "from workers import queue"),
        ("bus/hop/client.py", "def dial():\n    import deploy.cli"),
        ("proxy/app.py", "from workers.timeline import Timeline"),
        ("proxy/app.py", "if TYPE_CHECKING:\n    import deploy.cli"),
        ("workers/app.py", "from proxy import config"),
        ("workers/app.py", "import importlib\nimportlib.import_module('deploy.cli')"),
        ("workers/deep/app.py", "try:\n    import bus, proxy\nexcept ImportError:\n    pass"),
    ],
)
def test_an_import_that_runs_the_wrong_way_is_found(tmp_path, path, text):
    """However an import is written, it does not get past the wall."""
    plant(tmp_path, path, text)

    (found,) = broken_directions(tmp_path)

    assert found.startswith(f"{path}:")


@pytest.mark.parametrize(
    "text", ["import bus.reader", "from bus import keys", "from . import config", "import proxying", "x = 'deploy'"]
)
def test_an_import_that_runs_the_right_way_is_let_through(tmp_path, text):
    """The bus, oneself, and whatever only looks like a neighbour may be imported."""
    plant(tmp_path, "proxy/app.py", text)

    assert broken_directions(tmp_path) == []


@pytest.mark.parametrize("module", sorted(IMPURE))
@pytest.mark.parametrize("path", ["bus/record.py", "workers/timeline.py", "proxy/strategies/least_load.py"])
def test_the_outside_world_in_a_pure_module_is_found(tmp_path, path, module):
    """As a whole, in part or in a function: it is seen."""
    plant(tmp_path, path, f"import {module}.part\n\ndef f():\n    from {module} import part")

    assert len(broken_purity(tmp_path)) == 2


@pytest.mark.parametrize(
    ("text", "is_broken"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random", False),
        ("import typing\nif typing.TYPE_CHECKING:\n    import random", False),
        ("from random import Random\ndef choose(rng: Random): return rng.random()", False),
        ("from random import Random\ndef choose(): return Random().random()", True),
        ("from random import Random, choice", True),
        ("import random", True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import random", True),
        ("if TYPE_CHECKING:\n    from random import choice", True),
        ("if TYPE_CHECKING:\n    import asyncio", True),
    ],
)
def test_the_source_of_chance_may_be_named_as_a_type_only(tmp_path, text, is_broken):
    """An argument may be a `Random`; nothing may make one, or draw by itself."""
    plant(tmp_path, "proxy/strategies/round_robin.py", text)

    assert bool(broken_purity(tmp_path)) == is_broken


def test_impure_code_may_know_the_outside_world(tmp_path):
    """The shell is not held to what binds the core."""
    plant(tmp_path, "bus/reader.py", "import asyncio, time, redis.asyncio")

    assert broken_purity(tmp_path) == []


def test_a_pure_module_that_is_not_there_is_missed(tmp_path):
    """Of a tree with one pure module all the others are missed."""
    plant(tmp_path, "bus/record.py", "")

    assert missing_pure(tmp_path) == [path for path in PURE if path != "bus/record.py" and path not in NOT_YET]


@pytest.mark.parametrize(
    ("path", "text", "is_broken"),
    [
        ("bus/reader.py", "import redis.asyncio", False),
        ("bus/reader.py", "import aiohttp", True),
        ("bus/reader.py", "from httptools import HttpRequestParser", True),
        ("bus/hop/client.py", "import httptools", False),
        ("bus/hop/client.py", "from redis.asyncio import Redis", True),
    ],
)
def test_a_language_in_the_wrong_half_of_the_bus_is_found(tmp_path, path, text, is_broken):
    """HTTP stays in the hop, Redis outside it."""
    plant(tmp_path, path, text)

    assert bool(broken_bus(tmp_path)) == is_broken


def test_a_drawer_is_found(tmp_path):
    """A file or a folder of that name, at any depth."""
    plant(tmp_path, "proxy/utils.py", "")
    plant(tmp_path, "workers/engines/utils/text.py", "")
    plant(tmp_path, "workers/engines/utilisation.py", "")

    assert sorted(drawers(tmp_path)) == ["proxy/utils.py", "workers/engines/utils"]


@pytest.mark.parametrize(
    ("docstring", "is_silent"),
    [
        ('"""It is so."""', False),
        ('"""It is so,\n    over two lines."""', False),
        ('"""It holds for 1.5 and for e.g. bytes."""', False),
        ("pass", True),
        ('"""It is so"""', True),
        ('"""It is so. And so is this."""', True),
        ('"""It is so.\n\n    The reason is this. And this."""', False),
    ],
)
@pytest.mark.parametrize("frame", ["def test_it():\n    {}", "class TestIt:\n  async def test_it(self):\n    {}"])
def test_a_test_that_does_not_say_what_it_shows_is_found(tmp_path, frame, docstring, is_silent):
    """None, no sentence, and more than one are all seen."""
    plant(tmp_path, "tests/bus/test_it.py", frame.format(docstring))

    assert bool(silent_tests(tmp_path)) == is_silent
