"""The operators' documents name what there is: metrics, options, log lines, error codes, pages, files."""

import re
from functools import cache
from pathlib import Path

import click
import pytest

from bus.record import SIGNALS
from deploy.cli import forebay

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "deploy/docs").glob("*.md"))
README = ROOT / "README.md"
PACKAGES = ("bus", "proxy", "workers", "deploy")

#: Suffixes that Prometheus' own client adds, by the kind of metric.
SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("", "_count", "_sum", "_bucket")}

#: Options of other programs that are spoken of.
FOREIGN = {
    *("--max-num-seqs", "--parallel", "--metrics", "--enable-metrics", "--threads-http"),
    *("--enable-prompt-tokens-details", "--enable-cache-report", "--max-running-requests"),
    *("--kustomize", "--namespace", "--from-literal", "--from-file", "--replicas", "--scale", "--detach", "--build"),
    *("--help", "--weight", "--file", "--tag", "--pattern", "--scan"),
}


def by_name(path: Path) -> str:
    """A readable test id."""
    return path.name


@cache
def source() -> str:
    """All our code, string literals that Python joins put together."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in {".py", ".lua"}
    )
    return re.sub(r'"\s*\n\s*f?"', "", code)


@cache
def metrics() -> frozenset[str]:
    """Names under which metrics are exported."""
    found = re.findall(r'(Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*"(forebay_\w+)"', source())
    return frozenset(name + suffix for kind, name in found for suffix in SUFFIXES[kind])


@cache
def flags() -> frozenset[str]:
    """Every flag of every command."""
    context = click.Context(forebay)
    found: set[str] = set()
    for name in forebay.list_commands(context):
        command = forebay.get_command(context, name)
        commands = [command, *command.commands.values()] if isinstance(command, click.Group) else [command]
        found |= {flag for each in commands for param in each.params for flag in (*param.opts, *param.secondary_opts)}
    return frozenset(found | {flag for param in forebay.params for flag in param.opts})


def spans(path: Path) -> list[str]:
    """What stands in backticks, outside of blocks."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


@pytest.mark.parametrize("path", [*DOCS, README], ids=by_name)
def test_every_metric_that_is_named_is_exported(path):
    """Whoever looks for it finds it."""
    named = set(re.findall(r"\bforebay_\w+", path.read_text(encoding="utf-8")))
    containers = {name for name in named if re.search(r"_\d$", name)} | {"forebay_worker"}  # forebay_worker-1_1

    assert named - containers - metrics() == set()


@pytest.mark.parametrize("path", [*DOCS, README], ids=by_name)
def test_every_option_that_is_named_exists(path):
    """Flags, and variables that are made from them."""
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) - FOREIGN
    variables = set(re.findall(r"\bFOREBAY_(?:PROXY|WORKER|UP|CHECK|TOP)_[A-Z_]+", text))

    assert named - flags() == set()
    assert {name for name in variables if f"--{'-'.join(name.lower().split('_')[2:])}" not in flags()} == set()


@pytest.mark.parametrize("path", [*DOCS, README], ids=by_name)
def test_every_link_leads_somewhere(path):
    """To a file of the repository, and to a heading of it that is there."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", path.read_text(encoding="utf-8")):
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_log_line_and_error_code_of_the_runbook_is_in_the_code():
    """Words that are quoted are those that are written; NAME stands for what differs."""
    for span in spans(ROOT / "deploy/docs/runbook.md"):
        if re.match(r"(forebay|redis-cli|make|kubectl|--|/|x-|forebay_)", span):
            continue
        pieces = [piece.strip() for piece in span.split("NAME")]
        assert all(piece in source() for piece in pieces), span


def test_every_page_of_the_runbook_is_served():
    """Pages of ours; what engines serve is in the code as well, since it is read."""
    for span in spans(ROOT / "deploy/docs/runbook.md"):
        if span.startswith("/"):
            assert f'"{span}"' in source(), span


def test_every_signal_of_the_runbook_is_in_the_record():
    """`forebay_pressure` has one series a signal."""
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS)

    assert set(re.findall(r'signal="(\w+)"', text)) <= {*SIGNALS, "NAME"}


def test_the_readme_leads_to_every_document():
    """A document that nobody finds helps nobody."""
    linked = set(re.findall(r"\(deploy/docs/([\w-]+\.md)\)", README.read_text(encoding="utf-8")))

    assert linked == {path.name for path in DOCS}


@pytest.mark.parametrize("path", [*DOCS, README], ids=by_name)
def test_every_make_target_that_is_named_is_there(path):
    """A command that is printed can be typed."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text(encoding="utf-8"))) <= targets
