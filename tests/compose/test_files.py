"""The files of the cluster as written: valid for any docker-compose, safe by default, in step with the code."""

import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from deploy.cli import forebay
from tests.compose.dashboard import dashboard, expressions
from tests.compose.docker import ROOT

CONTAINER = ROOT / "deploy/container"
FILES = [ROOT / "docker-compose.yml", *(CONTAINER / f"{name}.yml" for name in ("engines", "secrets", "tls"))]
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = BASE["services"]

#: What only a newer docker-compose knows.
NOT_EVERYWHERE = {
    *("start_interval", "develop", "provider", "env_file_format", "pull_policy", "post_start", "pre_stop"),
    *("additional_contexts", "dockerfile_inline", "secrets_environment", "mem_swappiness"),
}


def keys(value: object) -> set[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in keys(each)}
    return {key for each in value for key in keys(each)} if isinstance(value, list) else set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_compose_file_says_only_what_old_and_new_docker_compose_understand(path):
    """One file for docker-compose 1.29 and for version 2."""
    found = yaml.safe_load(path.read_text())

    assert {key for key in found if not key.startswith("x-")} <= {"services", "volumes", "secrets", "networks"}
    assert not keys(found) & NOT_EVERYWHERE
    assert all(set(secret) == {"file"} for secret in found.get("secrets", {}).values())
    conditions = [each.get("depends_on", {}) for each in found["services"].values()]
    assert all(set(each) == {"condition"} for one in conditions if isinstance(one, dict) for each in one.values())
    assert "${TLS_FILE:+" not in path.read_text(), "1.29 knows :- and :? only"


def test_every_image_is_a_parameter():
    """Whoever has a registry of their own names it, and changes no file."""
    assert all(re.fullmatch(r"\$\{[A-Z_]+:-.+\}", service["image"]) for service in SERVICES.values())
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm" in (CONTAINER / "Dockerfile").read_text()


def test_only_the_balancer_and_the_monitoring_are_published_and_only_on_loopback_unless_told_otherwise():
    """Replicas have no port of the host, so that there can be any number; nothing is open by accident."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert set(published) == {"balancer", "prometheus", "grafana"}
    assert [port.partition("}:")[0] for ports in published.values() for port in ports] == [
        "${FOREBAY_BIND:-127.0.0.1",
        "${MONITORING_BIND:-127.0.0.1",
        "${MONITORING_BIND:-127.0.0.1",
    ]


def test_nobody_can_log_in_to_grafana_with_a_password_that_everybody_knows():
    """It shows the dashboard to whoever reaches it, and has no administrator."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE" not in environment, "Viewer"


def test_each_engine_has_one_worker_that_others_find_by_name():
    """A container that starts again has another address, and the same name."""
    workers = {name: service for name, service in SERVICES.items() if name.startswith("worker-")}
    engines = {name for name in SERVICES if name.startswith("engine-")}
    assert len(workers) == len(engines) == 3
    for name, service in workers.items():
        words = service["command"]
        engine = words[words.index("--instance") + 1].partition("=")[0]
        engines.remove(engine)
        assert words[words.index("--advertise-host") + 1] == name
        assert service["depends_on"] == {
            "redis": {"condition": "service_healthy"},
            engine: {"condition": "service_healthy"},
        }
    assert not engines


def test_redis_keeps_nothing_and_evicts_nothing():
    """A record that is evicted would be an instance forgotten; a record from before a restart would be a lie."""
    words = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly no" in words
    assert "--maxmemory-policy noeviction" in words
    assert SERVICES["redis"]["command"][SERVICES["redis"]["command"].index("--save") + 1] == ""


def test_real_engines_take_the_place_of_the_simulated_ones():
    """The override file starts no simulated engine, builds none, and gives each worker a real one."""
    found = yaml.safe_load((ROOT / "deploy/container/engines.yml").read_text())["services"]
    real = {name for name, service in found.items() if "image" in service}
    assert all(found[name] == {"scale": 0} for name in found if name.startswith("engine-"))
    assert {
        service["command"][2].partition("=")[0] for name, service in found.items() if name.startswith("worker-")
    } == real
    assert not any("build" in service for service in found.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_of_ours_is_an_option(path):
    """A variable that no command reads would be a setting that does nothing."""
    options = {
        f"FOREBAY_{name.upper()}_{param.name.upper()}"
        for name in ("proxy", "worker", "engine")
        for param in command(name).params
        if param.name
    }
    services = yaml.safe_load(path.read_text())["services"].values()
    set_here = {key for service in services for key in service.get("environment", {}) if key.startswith("FOREBAY_")}
    assert set_here - {"FOREBAY_REPLICAS_MOST"} <= options


def command(name: str) -> click.Command:
    """One command of `forebay`."""
    found = forebay.get_command(click.Context(forebay), name)
    assert found is not None
    return found


# --- the image


def test_the_image_is_made_of_wheels_with_hashes_by_either_builder():
    """Nothing is compiled, nothing comes unchecked, and nothing is needed that the classic builder lacks."""
    text = (CONTAINER / "Dockerfile").read_text()
    installs = [line for line in text.splitlines() if "pip" in line and " install " in line]
    from_index = [line for line in installs if "--no-deps" not in line]
    assert len(from_index) == 2
    assert all("--require-hashes" in line and "--only-binary :all:" in line for line in from_index)
    assert not re.search(r"--mount|--chmod|--link|# syntax", text)
    assert text.count("\nHEALTHCHECK ") == text.count("\nUSER ") == 2


def pinned(path: Path) -> dict[str, set[str]]:
    """Hashes by NAME==VERSION of a lock file."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in path.read_text().splitlines():
        start = re.match(r"([A-Za-z0-9._-]+==[^ ;\\]+)", line)
        if start:
            name = start[1]
            found[name] = set()
        hashed = re.search(r"--hash=(sha256:[0-9a-f]{64})", line)
        if hashed:
            found[name].add(hashed[1])
    return found


def test_the_image_has_what_was_tested_and_nothing_else():
    """Every package of the image's lock file is in the big one, with the same hashes; what only tests need is not."""
    runtime, everything = pinned(ROOT / "requirements-runtime.lock"), pinned(ROOT / "requirements.lock")
    assert runtime.items() <= everything.items()
    assert all(runtime.values())

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {each.partition("==")[0] for each in runtime}
    extras = project["optional-dependencies"]
    assert {bare(each) for each in (*project["dependencies"], *extras["tokenizer"], *extras["tracing"])} <= names
    assert not {bare(each) for each in extras["dev"]} - {"pyyaml"} & names


def bare(requirement: str) -> str:
    """Name of a package that is required."""
    return re.split(r"[\[<>=!~ ]", requirement)[0]


@pytest.mark.parametrize("name", ["healthy", "roll", "secrets"])
def test_a_script_can_be_run(name):
    """It is executable, and the shell can read it."""
    path = CONTAINER / name
    assert path.stat().st_mode & stat.S_IXUSR
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


# --- the balancer


def test_the_balancer_repeats_only_what_may_run_twice():
    """What makes a file, a batch or a job is sent once; generating again costs time and nothing else."""
    text = (CONTAINER / "haproxy.cfg").read_text()
    assert "retry-on conn-failure empty-response\n" in text
    (generates,) = re.findall(r"acl generates path (.*)", text)
    assert "http-request disable-l7-retry unless METH_GET or METH_HEAD or generates" in text
    assert not re.search("files|batches|uploads|fine_tuning|threads", generates)


def test_every_error_of_the_balancer_has_the_shape_of_the_api():
    """A client reads one kind of error, whoever made it."""
    bodies = re.findall(r"http-error status \d+ content-type application/json string '(.*)'", _balancer())
    assert len(bodies) == 5
    for body in bodies:
        assert set(yaml.safe_load(body)["error"]) == {"message", "type", "code", "param"}


def _balancer() -> str:
    return (CONTAINER / "haproxy.cfg").read_text()


# --- the dashboard


def test_prometheus_asks_for_names_that_the_cluster_has():
    """Replicas and workers are found by their service's name, or by the alias that workers share."""
    jobs = yaml.safe_load((CONTAINER / "prometheus.yml").read_text())["scrape_configs"]
    aliases = {
        alias
        for service in SERVICES.values()
        for alias in service.get("networks", {}).get("default", {}).get("aliases", ())
    }
    asked = {name for job in jobs for found in job["dns_sd_configs"] for name in found["names"]}
    assert asked == {"proxy", "workers", "balancer"}
    assert asked <= SERVICES.keys() | aliases


def test_the_dashboard_asks_only_for_metrics_that_exist():
    """A metric that was renamed would leave its panel empty."""
    code = (ROOT / "proxy/metrics.py").read_text() + (ROOT / "workers/metrics.py").read_text()
    asked = {name for each in expressions() for name in re.findall(r"\bforebay_\w+", each)}
    assert len(asked) > 10
    for name in asked:
        assert f'"{re.sub("_(total|bucket|count|sum)$", "", name)}"' in code, name


def test_the_dashboard_is_whole():
    """Each panel has a number of its own, a title, words, and the data source that is provisioned."""
    panels = dashboard()["panels"]
    sources = yaml.safe_load((CONTAINER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {sources[0]["uid"]}
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
