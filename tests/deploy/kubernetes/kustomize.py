"""What kustomize makes of a folder, for the part of its language that our overlays keep to; anything else is refused.

Resources, namespace, images, replicas and JSON 6902 patches. Where the real one is on the PATH, a test compares both.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

#: Kinds of ours that belong to a namespace: all of them.
KEYS = {"apiVersion", "kind", "namespace", "resources", "images", "replicas", "patches"}


def documents(path: Path) -> list[Resource]:
    """The resources of one file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def render(folder: Path) -> list[Resource]:
    """All resources of a folder with a kustomization.yaml, as `kubectl kustomize` prints them, in any order."""
    (settings,) = documents(folder / "kustomization.yaml")
    assert settings.keys() <= KEYS, f"{folder}: {settings.keys() - KEYS} is not rendered here"
    found = [resource for name in settings["resources"] for resource in _resources(folder / name)]
    for resource in found:
        if "namespace" in settings:
            resource["metadata"]["namespace"] = settings["namespace"]
        for replicas in settings.get("replicas", ()):
            if resource["metadata"]["name"] == replicas["name"] and resource["kind"] in {"Deployment", "StatefulSet"}:
                resource["spec"]["replicas"] = replicas["count"]
        for container in containers(resource):
            container["image"] = _image(container["image"], settings.get("images", []))
        for patch in settings.get("patches", ()):
            if _is_target(resource, patch["target"]):
                for operation in yaml.safe_load(patch["patch"]):
                    _apply(resource, operation)
    return found


def pod_of(resource: Resource) -> Resource | None:
    """The pod that a workload makes: metadata and spec."""
    return resource["spec"]["template"] if resource["kind"] in {"Deployment", "StatefulSet"} else None


def containers(resource: Resource) -> Iterator[Resource]:
    """The containers of a workload's pod."""
    pod = pod_of(resource)
    if pod:
        yield from pod["spec"]["containers"]


def _resources(path: Path) -> list[Resource]:
    return render(path) if path.is_dir() else copy.deepcopy(documents(path))


def _image(image: str, changes: list[dict[str, str]]) -> str:
    name, _, tag = image.partition(":")
    for change in changes:
        if change["name"] == name:
            name, tag = change.get("newName", name), change.get("newTag", tag)
            break
    return f"{name}:{tag}" if tag else name


def _is_target(resource: Resource, target: dict[str, str]) -> bool:
    assert target.keys() == {"kind", "name"}
    return resource["kind"] == target["kind"] and resource["metadata"]["name"] == target["name"]


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    """One operation of RFC 6902; what it replaces must be there."""
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    place: Any = resource
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if operation["op"] == "replace":
        assert place[int(last) if isinstance(place, list) else last] is not None
    else:
        assert operation["op"] == "add"
        assert not isinstance(place, list)
    place[int(last) if isinstance(place, list) else last] = operation["value"]
