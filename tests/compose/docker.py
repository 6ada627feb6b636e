"""Docker for the tests: whether there is one here with the images at hand, and one cluster of ours on it.

Everything is done by the programs that a user would type: docker and docker-compose (or `docker compose`).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from deploy.ports import free_ports

ROOT = Path(__file__).parents[2]

#: What stands in for public images where a tool made them of Debian's packages.
STAND_INS = {"BASE_IMAGE": "forebay-base:bookworm", "REDIS_IMAGE": "forebay-redis:bookworm"}

#: What is used without a tool: the compose file's own defaults.
PUBLIC = {"BASE_IMAGE": "python:3.11-slim-bookworm", "REDIS_IMAGE": "redis:7"}


class NoDocker(Exception):
    """Why the cluster cannot be run here."""


class Docker:
    """A daemon that answers, the environment that leads to it, and the images that clusters are made of."""

    def __init__(self, variables: Mapping[str, str], *, started_by: str = "") -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
            **variables,
        }
        self._started_by = started_by
        has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        self.compose = ["docker", "compose"] if has_plugin else ["docker-compose"]

    def run(
        self, *words: str, limit_s: float = 120.0, more: Mapping[str, str] | None = None, with_errors: bool = False
    ) -> str:
        """Run a command, from the top of the repository, and return what it wrote; its own words if it fails."""
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**self.environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout + done.stderr if with_errors else done.stdout

    def close(self) -> None:
        """Stop the daemon, if it was started for the tests."""
        if self._started_by:
            subprocess.run([self._started_by, "down"], capture_output=True, check=False)


def find_docker() -> Docker:
    """Return Docker with the images at hand. Raises NoDocker, which says what is missing."""
    tool = os.environ.get("DOCKER_HOST_TOOL", "")
    if tool:
        return _by_tool(tool)
    if not shutil.which("docker"):
        raise NoDocker("there is no docker here, and DOCKER_HOST_TOOL names nothing that brings one")
    if not _answers(os.environ):
        raise NoDocker("no Docker daemon answers, and DOCKER_HOST_TOOL names nothing that starts one")
    images = {name: os.environ.get(name, image) for name, image in PUBLIC.items()}
    missing = [image for image in images.values() if not _has_image(image)]
    if missing:
        raise NoDocker(f"Docker answers, but {', '.join(missing)} is not at hand: docker pull it, or name another one")
    return Docker(images)


def _by_tool(tool: str) -> Docker:
    """Docker as the tool gives it. Raises NoDocker with the end of what was said."""
    try:
        host = _host_in(_output(tool, "env"))
        was_up = bool(shutil.which("docker")) and _answers({**os.environ, **host})
        found = Docker({**STAND_INS, **_host_in(_output(tool, "up"))}, started_by="" if was_up else tool)
        # a daemon may well start where no container can
        _output("docker", "run", "--rm", STAND_INS["BASE_IMAGE"], "true", environment=found.environment)
    except (OSError, subprocess.SubprocessError) as fault:
        said = str(getattr(fault, "stderr", None) or fault).strip().splitlines()
        raise NoDocker(f"DOCKER_HOST_TOOL={tool} brings none here: {' | '.join(said[-2:])}") from fault
    return found


def _output(*words: str, environment: Mapping[str, str] | None = None) -> str:
    """What a command writes. Raises CalledProcessError, TimeoutExpired, OSError."""
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=420, check=True)
    return done.stdout


def _host_in(text: str) -> dict[str, str]:
    """The variable that a tool's output exports."""
    found = re.search(r"DOCKER_HOST=(\S+)", text)
    return {"DOCKER_HOST": found[1]} if found else {}


def _answers(environment: Mapping[str, str]) -> bool:
    return subprocess.run(["docker", "info"], env=environment, capture_output=True, check=False).returncode == 0


def _has_image(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


class Container(msgspec.Struct, frozen=True):
    """One container of a cluster."""

    id: str
    name: str
    service: str


class Cluster:
    """One compose project on loopback ports of its own."""

    def __init__(self, docker: Docker, folder: Path) -> None:
        self.docker = docker
        self.api_key = ""
        """Key of the one client, once there is one."""
        self.project = f"forebay-test-{os.getpid()}"
        self.port, self.prometheus_port = free_ports(2)
        self._variables = {
            "COMPOSE_PROJECT_NAME": self.project,
            "FOREBAY_IMAGE": "forebay:test",
            "BALANCER_IMAGE": "forebay-balancer:test",
            "PROMETHEUS_IMAGE": "forebay-prometheus:test",
            "FOREBAY_BIND": "127.0.0.1",
            "FOREBAY_PORT": str(self.port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "COMPOSE_FILE": "docker-compose.yml:deploy/container/secrets.yml",
            "SECRETS_FOLDER": str(folder),
            "ENV_FILE": str(folder / "env"),
            **containers_user(),
        }

    @property
    def url(self) -> str:
        """The API, through the balancer."""
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *words: str, limit_s: float = 300.0) -> str:
        """Run docker-compose for this cluster."""
        return self.docker.run(*self.docker.compose, *words, limit_s=limit_s, more=self._variables)

    def script(self, *words: str, limit_s: float = 300.0) -> str:
        """Run a script of the repository for this cluster, and return all it wrote."""
        return self.docker.run(*words, limit_s=limit_s, more=self._variables, with_errors=True)

    def make_secrets(self) -> None:
        """Make the secrets and one client's key, as the script does for a user."""
        said = self.script("deploy/container/secrets", "tests")
        found = re.search(r"shown this once: (\S+)", said)
        assert found, said
        self.api_key = found[1]

    def containers(self, service: str = "") -> list[Container]:
        """The containers there are, stopped ones too, ordered by name."""
        form = '{{.ID}} {{.Names}} {{.Label "com.docker.compose.service"}}'
        lines = self.docker.run("docker", "ps", "--all", "--filter", self._label, "--format", form).splitlines()
        found = sorted((Container(*line.split()) for line in lines), key=lambda container: container.name)
        return [each for each in found if service in {"", each.service}]

    def inside(self, container: Container, *words: str) -> str:
        """Run a command in a container."""
        return self.docker.run("docker", "exec", container.id, *words)

    def kill(self, container: Container) -> None:
        """End a container without a word (SIGKILL); nothing starts it again by itself."""
        self.docker.run("docker", "kill", container.id)

    def start(self, container: Container) -> None:
        """Start a container again."""
        self.docker.run("docker", "start", container.id)

    def health(self, container: Container) -> str:
        """How it says that it is: starting, healthy or unhealthy."""
        return self.docker.run("docker", "inspect", "--format", "{{.State.Health.Status}}", container.id).strip()

    def logs(self, length: int = 1500) -> list[tuple[str, str]]:
        """The end of every container's log."""
        tails = []
        for each in self.containers():
            done = subprocess.run(
                ["docker", "logs", "--tail", "40", each.id],
                env=self.docker.environment,
                capture_output=True,
                check=False,
            )
            tails.append((each.name, (done.stdout + done.stderr).decode(errors="replace")[-length:]))
        return tails

    def leftovers(self) -> list[str]:
        """Containers, networks and volumes of this cluster that are still there."""
        kinds: Sequence[tuple[str, ...]] = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
        return [
            f"{kind[0]}: {line}"
            for kind in kinds
            for line in self.docker.run("docker", *kind, "--quiet", "--filter", self._label).split()
        ]

    @property
    def _label(self) -> str:
        return f"label=com.docker.compose.project={self.project}"


def containers_user() -> dict[str, str]:
    """Who the containers run as: whoever runs the tests, so that secrets can be theirs alone; never root."""
    return {"FOREBAY_UID": str(os.getuid() or 10001), "FOREBAY_GID": str(os.getgid() or 10001)}
