"""The manifests: valid for each Kubernetes that is in use, in step with our options, and closed where they must be."""

import asyncio
import re
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from deploy.cli import forebay
from proxy.config import ProxyConfig
from tests.deploy.kubernetes.kustomize import Resource, containers, documents, pod_of, render
from workers.config import WorkerConfig

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATIONS = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml"))
BASE = render(FOLDER / "base")
RENDERED = [(folder.name, resource) for folder in KUSTOMIZATIONS for resource in render(folder)]
WORKLOADS = [resource for _, resource in RENDERED if pod_of(resource)]

#: The oldest Kubernetes that the manifests are for, and the newest that there is a schema of.
VERSIONS = ("1.29", kubernetes_validate.latest_version())


def name_of(value: object) -> str | None:
    """A readable test id."""
    if isinstance(value, dict):
        return f"{value['kind']}-{value['metadata']['name']}"
    return None


def the(kind: str, name: str, resources: list[Resource] = BASE) -> Resource:
    """One resource by kind and name."""
    (found,) = (each for each in resources if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def container(name: str) -> Resource:
    """One container of the base by its name."""
    (found,) = (each for resource in BASE for each in containers(resource) if each["name"] == name)
    return found


def variables(container: Resource) -> dict[str, Any]:
    """Environment of a container: values where they are given, else where they come from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def source_of(value_from: dict[str, dict[str, str]]) -> str:
    """Which field of the pod, or which key of a Secret, a variable is filled from."""
    (source,) = value_from.values()
    return source.get("fieldPath") or source["key"]


def seconds(name: str) -> float:
    """The drain time of one of our containers, as its variable sets it."""
    command = container(name)["args"][0]
    return float(variables(container(name))[f"FOREBAY_{command.upper()}_DRAIN_S"])


def selected(selector: dict[str, str], resources: list[Resource]) -> list[Resource]:
    """Workloads whose pods a label selector finds."""
    found = []
    for resource in resources:
        pod = pod_of(resource)
        if pod and selector.items() <= pod["metadata"]["labels"].items():
            found.append(resource)
    return found


# -- valid


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("folder", "resource"), RENDERED, ids=name_of)
def test_each_rendered_resource_is_valid_by_the_strict_schema_of_its_kind(folder, resource, version):
    """Strict: a key that Kubernetes does not know is an error too."""
    kubernetes_validate.validate(resource, version, strict=True)


def test_the_schema_check_finds_a_misspelt_key():
    """The check above can fail."""
    wrong = the("Deployment", "forebay-proxy", render(FOLDER / "base"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 5

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_manifest_is_in_a_kustomization():
    """A file that nobody applies says nothing true."""
    listed = {
        (folder / name).resolve()
        for folder in KUSTOMIZATIONS
        for name in documents(folder / "kustomization.yaml")[0]["resources"]
    }
    there = {path.resolve() for path in (FOLDER / "base").glob("*.yaml") if path.name != "kustomization.yaml"}

    assert there == {path for path in listed if path.is_file()}


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
def test_what_is_checked_here_is_what_kustomize_renders(folder):
    """Where the real one is at hand, both make the same of the same folder."""
    if shutil.which("kustomize"):
        words = ["kustomize", "build"]
    elif shutil.which("kubectl"):
        words = ["kubectl", "kustomize"]
    else:
        pytest.skip("neither kustomize nor kubectl is on the PATH")

    printed = subprocess.run([*words, folder], capture_output=True, text=True, check=True, timeout=60).stdout

    def key(resource: Resource) -> tuple[str, str]:
        return resource["kind"], resource["metadata"]["name"]

    assert sorted(yaml.safe_load_all(printed), key=key) == sorted(render(folder), key=key)


# -- in step with the code


@pytest.mark.parametrize("name", ["proxy", "worker"])
def test_every_variable_and_flag_is_an_option_and_takes_its_value(name):
    """The command is parsed as it will be, with what Kubernetes puts in; a renamed option would be found here."""
    command = forebay.get_command(click.Context(forebay), name)
    known = {f"FOREBAY_{name}_{'_'.join(option.toml_path)}".upper() for option in command.params}
    stand_ins = {
        "metadata.name": "forebay-vllm-0",
        "status.podIP": "10.1.2.3",
        "proxy-url": "redis://forebay-proxy:secret@redis:6379/0",
        "worker-url": "redis://forebay-worker:secret@redis:6379/0",
    }
    given = {
        key: value if isinstance(value, str) else stand_ins[source_of(value)]
        for key, value in variables(container(name)).items()
    }
    assert {key for key in given if key.startswith("FOREBAY_")} <= known
    words = [re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], word) for word in container(name)["args"]]

    seen = {}

    def keep(config: ProxyConfig | WorkerConfig) -> None:
        seen["config"] = config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.app.run" if name == "proxy" else "workers.process.run", keep)
        done = CliRunner().invoke(forebay, words, env=given)

    assert done.exit_code == 0, done.output
    config = seen["config"]
    assert config.admin_port == 9000
    if name == "worker":
        assert config.advertise_host == "10.1.2.3"
        assert [(each.id, each.engine_url) for each in config.instances] == [
            ("forebay-vllm-0", "http://127.0.0.1:8000")
        ]


def test_the_ports_that_are_named_are_those_listened_on():
    """The named ports of our containers are the options' values, and each probe and service names one of them."""
    for name, named in (
        ("proxy", {"api": "PORT", "admin": "ADMIN_PORT"}),
        ("worker", {"worker": "PORT", "admin": "ADMIN_PORT"}),
    ):
        ports = {each["name"]: each["containerPort"] for each in container(name)["ports"]}
        values = variables(container(name))
        assert ports == {port: int(values[f"FOREBAY_{name.upper()}_{option}"]) for port, option in named.items()}
        probes = [
            container(name)[probe]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
            if probe in container(name)
        ]
        assert probes
        assert {probe["httpGet"]["port"] for probe in probes} <= ports.keys()

    for resource in BASE:
        if resource["kind"] == "Service":
            (workload,) = selected(resource["spec"]["selector"], BASE)
            ports = {port["name"] for each in containers(workload) for port in each.get("ports", ())}
            assert {port["targetPort"] for port in resource["spec"]["ports"]} <= ports


def test_the_worker_dials_the_engine_where_it_listens_and_has_as_many_slots():
    """The engine listens to its own pod only, and its slots are told twice."""
    engine, worker = container("engine"), container("worker")
    options = dict(pairwise(engine["args"]))

    assert options["--host"] == "127.0.0.1"
    assert worker["args"][-1].endswith(f"=http://127.0.0.1:{options['--port']}")
    assert options["--max-num-seqs"] == variables(worker)["FOREBAY_WORKER_SLOTS"]
    assert f":{options['--port']}/health" in engine["readinessProbe"]["exec"]["command"][-1]


def test_the_metric_that_scales_is_one_that_a_replica_exports_and_the_adapter_hands_on():
    """Idle replicas export it too: without a value Kubernetes would never scale down."""
    hpa = the("HorizontalPodAutoscaler", "forebay-proxy")
    (metric,) = (each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"])
    (rule,) = documents(FOLDER / "prometheus-adapter.yaml")[0]["rules"]["custom"]

    assert rule["name"]["as"] == metric
    assert rule["seriesQuery"].startswith(f"{metric}{{")
    assert f'"{metric}"' in (ROOT / "proxy/metrics.py").read_text()
    the("Deployment", hpa["spec"]["scaleTargetRef"]["name"])
    assert "replicas" not in the("Deployment", "forebay-proxy")["spec"], "the autoscaler owns the number"


# -- selectors


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
def test_every_selector_finds_the_pods_it_is_meant_for(folder):
    """Services, budgets, policies, spreads and workloads: each finds exactly one workload's pods."""
    resources = render(folder)
    found = {}
    for resource in resources:
        spec, name = resource["spec"], f"{resource['kind']} {resource['metadata']['name']}"
        if resource["kind"] == "Service":
            found[name] = selected(spec["selector"], resources)
        elif resource["kind"] == "NetworkPolicy":
            found[name] = selected(spec["podSelector"]["matchLabels"], resources)
        elif "selector" in spec:
            found[name] = selected(spec["selector"]["matchLabels"], resources)
        pod = pod_of(resource)
        for term in _terms(pod["spec"]) if pod else ():
            assert selected(term, resources) == [resource]
    assert len(found) == 8
    assert all(len(workloads) == 1 for workloads in found.values())
    engines = the("StatefulSet", "forebay-vllm", resources)
    assert engines["spec"]["serviceName"] == the("Service", "forebay-engine", resources)["metadata"]["name"]
    for kind in ("Deployment", "StatefulSet"):
        for workload in (each for each in resources if each["kind"] == kind):
            matching = [name for name, workloads in found.items() if workloads == [workload]]
            assert {name.split()[0] for name in matching} == {kind, "Service", "PodDisruptionBudget", "NetworkPolicy"}


def _terms(spec: Resource) -> list[dict[str, str]]:
    """Label selectors of spreads and affinities."""
    spreads = [each["labelSelector"] for each in spec.get("topologySpreadConstraints", ())]
    wishes = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return [each["matchLabels"] for each in (*spreads, *(wish["podAffinityTerm"]["labelSelector"] for wish in wishes))]


# -- closed


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_no_container_is_root_writes_to_its_image_or_has_a_token_of_the_cluster(workload):
    """What the `restricted` standard of Kubernetes asks for, and a read-only root beside it."""
    spec = pod_of(workload)["spec"]

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in spec["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()
        assert "memory" in each["resources"]["limits"]


def test_secrets_are_named_and_never_held():
    """No manifest holds a secret or a URL with a password; each file that an option names is mounted from a Secret."""
    assert not [resource for _, resource in RENDERED if resource["kind"] == "Secret"]
    for workload in (each for each in BASE if pod_of(each)):
        spec = pod_of(workload)["spec"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "secrets")
        paths = {
            f"/run/secrets/forebay/{item['path']}"
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        }
        ours = next(each for each in spec["containers"] if each["image"] == "forebay")
        files = {value for value in variables(ours).values() if isinstance(value, str) and value.startswith("/")}
        assert files == paths
        assert {"name": "secrets", "mountPath": "/run/secrets/forebay", "readOnly": True} in ours["volumeMounts"]


def test_a_worker_can_be_called_by_proxies_only():
    """Through any other way in, requests would be in no reservation and under no key's limits."""
    policy = the("NetworkPolicy", "forebay-engine")["spec"]
    calls = [rule for rule in policy["ingress"] if {"port": "admin"} not in rule["ports"]]

    assert policy["policyTypes"] == ["Ingress"]
    assert calls == [
        {
            "from": [
                {"podSelector": {"matchLabels": the("Deployment", "forebay-proxy")["spec"]["selector"]["matchLabels"]}}
            ],
            "ports": [{"port": "worker"}],
        }
    ]
    assert all("from" in rule for rule in policy["ingress"])


# -- the end of a pod


def test_a_pod_is_given_as_long_as_its_drain_may_take():
    """What is killed in mid-drain has cut its streams."""
    proxy, engine = (
        pod_of(each)["spec"] for each in (the("Deployment", "forebay-proxy"), the("StatefulSet", "forebay-vllm"))
    )
    word, pause = container("proxy")["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"

    assert proxy["terminationGracePeriodSeconds"] >= float(pause) + seconds("proxy") + 10
    assert engine["terminationGracePeriodSeconds"] >= seconds("worker") + 30


async def test_the_engine_is_told_to_end_only_after_its_worker_has_closed():
    """The engine's preStop, run as it stands in the manifest, ends when nobody listens on the worker's port."""
    (port,) = (each["containerPort"] for each in container("worker")["ports"] if each["name"] == "worker")
    *shell, script = container("engine")["lifecycle"]["preStop"]["exec"]["command"]
    assert f"/127.0.0.1/{port})" in script
    looks: list[float] = []
    looked_twice = asyncio.Event()

    def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        looks.append(time.monotonic())
        writer.close()
        if len(looks) == 2:
            looked_twice.set()

    server = await asyncio.start_server(look, "127.0.0.1", 0)
    there = server.sockets[0].getsockname()[1]
    hook = await asyncio.create_subprocess_exec(*shell, script.replace(f"/{port})", f"/{there})"))
    try:
        async with asyncio.timeout(30):
            await looked_twice.wait()
            assert hook.returncode is None
            server.close()
            assert await hook.wait() == 0
    finally:
        server.close()
        if hook.returncode is None:
            hook.kill()
            await hook.wait()
