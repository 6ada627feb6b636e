"""One running cluster for the tests that need one: built, started with four replicas, and taken down without a rest."""

from collections.abc import Iterator

import pytest

from tests.compose.docker import Cluster, Docker, NoDocker, find_docker

REPLICAS = 4


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """Give Docker, or say why there is none."""
    try:
        found = find_docker()
    except NoDocker as why:
        pytest.skip(f"the docker-compose cluster is not run: {why}")
    yield found
    found.close()


@pytest.fixture(scope="session")
def cluster(docker, tmp_path_factory) -> Iterator[Cluster]:
    """Give the cluster with four replicas and Prometheus; images and their layers stay for the next time."""
    one = Cluster(docker, tmp_path_factory.mktemp("secrets"))
    docker.run(
        *("docker", "build", "--network", "host", "--build-arg", f"BASE_IMAGE={docker.environment['BASE_IMAGE']}"),
        *("--tag", "forebay-prometheus:test", "tests/compose/prometheus"),
        limit_s=300,
    )
    try:
        one.compose("build", limit_s=600)
        one.make_secrets()
        one.compose("up", "--detach", "--scale", f"proxy={REPLICAS}", *PARTS)
        yield one
    finally:
        one.compose("down", "--volumes", "--remove-orphans")


#: Everything but Grafana, whose image cannot be had everywhere; what these depend on comes with them.
PARTS = ("balancer", "worker-1", "worker-2", "worker-3", "prometheus")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the ends of the containers' logs to the report of a failure."""
    report = yield
    one = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(one, Cluster):
        report.sections += [(f"log of {name}", text) for name, text in one.logs()]
    return report
