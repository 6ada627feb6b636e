"""The cluster of docker-compose.yml, run: faults and renewals under load, what the dashboard asks, and its end."""

import asyncio
import json
import math
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.compose.conftest import REPLICAS
from tests.compose.dashboard import expressions
from tests.compose.docker import Cluster, Container
from tests.compose.load import Fault, Load, Stream, ended_in, recovery_s, table
from tests.processes.fleet import fetch, gauge, until

pytestmark = pytest.mark.compose

PER_S = 6.0
TOKENS = 150
STREAMS = 500
BURST = 32
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def ready(cluster) -> Cluster:
    """Give the cluster once it serves the model on every replica."""
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key=cluster.api_key, max_retries=0, timeout=5) as client:

        def is_served() -> bool:
            try:
                return "sim" in [model.id for model in client.models.list()]
            except openai.OpenAIError:
                return False

        until(is_served, "the model is served", limit_s=LIMIT_S)
    return cluster


@pytest.fixture(scope="module")
def client(ready) -> Iterator[openai.OpenAI]:
    """Give the official client, without its own retries."""
    with openai.OpenAI(base_url=f"{ready.url}/v1", api_key=ready.api_key, max_retries=0, timeout=30) as one:
        yield one


def fetch_inside(cluster: Cluster, container: Container, path: str) -> str:
    """An admin page of a container, read from inside it: nothing but the API is published."""
    script = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:9000{path}').read().decode())"
    return cluster.inside(container, "python", "-c", script)


def page(cluster: Cluster, container: Container, path: str) -> dict[str, Any]:
    """The same, decoded."""
    decoded: dict[str, Any] = json.loads(fetch_inside(cluster, container, path))
    return decoded


# --- what it is made of


def test_every_part_is_healthy(ready):
    """Each container's own check says so, within a minute of the start."""
    for each in ready.containers():
        if each.service != "prometheus":
            until(lambda each=each: ready.health(each) == "healthy", f"{each.name} is healthy", limit_s=LIMIT_S)


def test_our_containers_run_without_privileges(ready):
    """No container is root, none has a capability, and none can write to its image."""
    for each in ready.containers():
        if each.service == "prometheus":
            continue
        form = "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}}"
        said = ready.docker.run("docker", "inspect", "--format", form, each.id).strip()
        assert said == "true [ALL] [no-new-privileges:true]", each.name
        assert ready.inside(each, "id", "-u").strip() != "0", each.name


def test_no_tool_that_builds_is_left_in_the_image(ready):
    """Neither a compiler nor, in the environment that runs, an installer."""
    proxy = ready.containers("proxy")[0]
    look = "for each in gcc cc make git curl; do command -v $each; done; ls /opt/forebay/lib/python3*/site-packages"
    found = ready.inside(proxy, "bash", "-c", look).split()
    assert not {"pip", "setuptools", "pytest"} & set(found)
    assert not [path for path in found if path.startswith("/")]


def test_each_replica_has_a_name_of_its_own(ready):
    """Replicas that tie take turns in orders of their own, for which their names must differ."""
    names = {page(ready, each, "/debug/instance_loads")["replica"] for each in ready.containers("proxy")}
    assert len(names) == REPLICAS


# --- through the balancer


def test_the_balancer_spreads_over_all_replicas(ready, client):
    """A few requests in a row have met every replica."""

    def replicas() -> set[str]:
        answers = [client.models.with_raw_response.list() for _ in range(2 * REPLICAS)]
        return {answer.headers["x-forebay-replica"] for answer in answers}

    until(lambda: len(replicas()) == REPLICAS, "every replica is used", limit_s=LIMIT_S)


def test_a_stream_comes_event_by_event(client):
    """The balancer holds nothing back: between the first event and the last lies what the engine takes for them."""
    stream = client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": "Slowly"}], max_tokens=100, stream=True
    )
    times = [time.monotonic() for _ in stream]
    assert times[-1] - times[0] > 0.5


def test_a_body_beyond_the_balancers_buffer_passes(client):
    """What is too large to be kept for a repeat is sent all the same."""
    words = "water " * 150_000
    with pytest.raises(openai.BadRequestError) as caught:  # the engine's own answer: more than its context holds
        client.chat.completions.create(model="sim", messages=[{"role": "user", "content": words}], max_tokens=1)
    assert "context" in caught.value.message


def test_nobody_comes_in_without_a_key(ready):
    """The key file is a secret that the containers' user can read, and it is used."""
    assert fetch(f"{ready.url}/v1/models")[0] == 401


def test_a_worker_takes_nothing_from_whoever_does_not_share_its_secret(ready):
    """A request past the proxies, from inside the cluster's network, is refused."""
    script = (
        "import urllib.request as u, urllib.error as e\n"
        "try: print(u.urlopen(u.Request('http://worker-1:8000/v1/chat/completions', data=b'{}')).status)\n"
        "except e.HTTPError as error: print(error.code)"
    )
    assert ready.inside(ready.containers("engine-1")[0], "python", "-c", script).strip() == "403"


def test_an_error_of_the_api_passes_the_balancer_unchanged(client):
    """The client sees the gateway's own words."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"


async def test_a_client_that_leaves_before_the_first_event_ends_the_work(ready):
    """The balancer passes the end of a connection on at once: nothing is generated for nobody."""
    async with openai.AsyncOpenAI(base_url=f"{ready.url}/v1", api_key=ready.api_key, max_retries=0) as client:
        request = asyncio.create_task(
            client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": "Whole"}], max_tokens=20_000
            )
        )
        await asyncio.to_thread(until, lambda: at_work(ready) > 0, "a worker has it", limit_s=LIMIT_S)
        request.cancel()
        await asyncio.to_thread(until, lambda: at_work(ready) == 0, "no worker has it any longer", limit_s=LIMIT_S)


def at_work(cluster: Cluster) -> float:
    """Requests that the workers have accepted and not finished."""
    workers = [each for each in cluster.containers() if each.service.startswith("worker")]
    return sum(gauge(fetch_inside(cluster, each, "/metrics").encode(), "forebay_worker_inflight") for each in workers)


# --- faults and renewals under load


class Faults:
    """Injects one fault after the other while a load runs, each repaired and recovered from before the next."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster = cluster
        self.load = load
        self.faults: list[Fault] = []

    async def __call__(self, name: str, *steps) -> None:
        """Take the steps, each in a thread, then wait until it is recovered from."""
        fault = Fault(name, time.monotonic())
        if self.faults:
            self.faults[-1].ended_s = fault.began_s
        self.faults.append(fault)
        for step in steps:
            await asyncio.to_thread(step) if callable(step) else await asyncio.sleep(step)
        await asyncio.to_thread(until, lambda: recovery_s(self.load.streams, fault) is not None, name, limit_s=LIMIT_S)

    def healthy(self, container: Container):
        """Return a step that waits for a container's health."""
        return lambda: until(lambda: self.cluster.health(container) == "healthy", container.name, limit_s=LIMIT_S)


async def inject(cluster: Cluster, load: Load) -> list[Fault]:
    """Every fault and renewal, with its repair."""
    faults = Faults(cluster, load)
    proxy, worker = cluster.containers("proxy")[1], cluster.containers("worker-2")[0]
    (redis,) = cluster.containers("redis")
    await asyncio.to_thread(
        until, lambda: sum(stream.is_whole for stream in load.streams) >= 20, "streams flow", limit_s=LIMIT_S
    )
    for name, target in (("a proxy is killed", proxy), ("a worker is killed", worker), ("Redis is killed", redis)):
        kill, start = (lambda one=target: cluster.kill(one)), (lambda one=target: cluster.start(one))
        await faults(name, kill, 4.0, start, faults.healthy(target))
    await faults("Redis is restarted", lambda: cluster.compose("restart", "redis"), faults.healthy(redis))
    await faults("proxies and workers are renewed one by one", lambda: cluster.script("deploy/container/roll"))
    return faults.faults


@pytest.fixture(scope="module")
def campaign(ready) -> tuple[list[Stream], list[Fault]]:
    """Give every stream and every fault of one run, and print the table."""

    async def run() -> tuple[list[Stream], list[Fault]]:
        load = Load(ready.url, ready.api_key, per_s=PER_S, tokens=TOKENS)
        async with load.running(at_least=STREAMS):
            faults = await inject(ready, load)
        return load.streams, faults

    streams, faults = asyncio.run(run())
    broken = sum(stream.is_broken for stream in streams)
    print(f"\n{len(streams)} streams, {sum(s.is_whole for s in streams)} whole, {broken} broken after they had begun")
    print(table(streams, faults))
    return streams, faults


def during(campaign: tuple[list[Stream], list[Fault]], name: str) -> list[Stream]:
    """The streams that ended from one fault to the next."""
    streams, faults = campaign
    return ended_in(streams, next(fault for fault in faults if fault.name == name))


def test_no_stream_is_lost(campaign):
    """Whatever was killed, restarted or renewed: every request is answered, or its stream had already begun."""
    streams, _ = campaign
    assert len(streams) >= STREAMS
    assert [stream for stream in streams if stream.is_lost] == []


def test_only_the_killed_proxys_streams_break(campaign):
    """What a proxy had begun breaks with it, and nothing that passes through another one."""
    broken = [stream for stream in during(campaign, "a proxy is killed") if stream.is_broken]
    replicas = {stream.replica for stream in broken}
    assert len(replicas) <= 1
    died_s = min((stream.ended_s for stream in broken), default=0.0)
    through_it = [s for s in campaign[0] if s.replica in replicas and s.started_s <= died_s < s.ended_s - 0.5]
    assert all(stream.is_broken for stream in through_it)  # it is dead: nothing that it carried goes on


def test_only_the_killed_workers_streams_break_and_say_so(campaign):
    """What a worker had begun ends with an error event, and without a forged end."""
    broken = [stream for stream in during(campaign, "a worker is killed") if stream.is_broken]
    assert {stream.instance for stream in broken} <= {"engine-2"}
    assert all(stream.problem.startswith("error event") and not stream.is_done for stream in broken)


@pytest.mark.parametrize(
    "name", ["Redis is killed", "Redis is restarted", "proxies and workers are renewed one by one"]
)
def test_nothing_breaks_when_nothing_that_carries_streams_is_killed(campaign, name):
    """Without Redis streams go on, and what is told to stop lets its streams finish."""
    assert [stream for stream in during(campaign, name) if stream.is_broken] == []


def test_every_fault_is_recovered_from(campaign):
    """Twenty streams in a row are as if nothing had been, soon after."""
    streams, faults = campaign
    assert len(faults) == 5
    for fault in faults:
        seconds = recovery_s(streams, fault)
        assert seconds is not None, fault.name
        assert seconds < 15, fault.name


async def test_requests_whose_proxy_dies_before_their_first_event_are_answered_by_another(ready, campaign):
    """The balancer has kept them, and sends each to a replica that lives."""
    load = Load(ready.url, ready.api_key, per_s=PER_S, tokens=5)
    held: dict[str, float] = {}

    async def kill_the_busiest() -> None:
        await asyncio.to_thread(
            until, lambda: at_work(ready) >= BURST / 2, "they wait for the engines", limit_s=LIMIT_S
        )
        for each in ready.containers("proxy"):
            text = await asyncio.to_thread(fetch_inside, ready, each, "/metrics")
            held[each.id] = gauge(text.encode(), "forebay_inflight")
        await asyncio.to_thread(ready.docker.run, "docker", "kill", max(held, key=held.__getitem__))

    await load.burst(BURST, kill_the_busiest)

    await asyncio.to_thread(ready.docker.run, "docker", "start", max(held, key=held.__getitem__))
    assert max(held.values()) > 1
    assert [stream for stream in load.streams if stream.is_lost] == []
    assert len({stream.replica for stream in load.streams if stream.is_broken}) <= 1


# --- what the dashboard asks


def answers(cluster: Cluster, expression: str) -> list[float]:
    """Every number that Prometheus has for an expression over the last ten minutes."""
    now = time.time()
    query = urllib.parse.urlencode({"query": expression, "start": now - 600, "end": now, "step": 5})
    status, body = fetch(f"http://127.0.0.1:{cluster.prometheus_port}/api/v1/query_range?{query}")
    assert status == 200, (expression, body)
    numbers = [float(value) for row in json.loads(body)["data"]["result"] for _, value in row["values"]]
    return [number for number in numbers if not math.isnan(number)]


def test_prometheus_finds_every_replica_and_worker(ready, campaign):
    """Who stands behind the names is asked of Docker's DNS, after the renewal too."""
    url = f"http://127.0.0.1:{ready.prometheus_port}/api/v1/query?query=sum%20by%20(job)%20(up)"

    def up() -> dict[str, str]:
        body = fetch(url)[1]
        result = json.loads(body)["data"]["result"] if body else []
        return {row["metric"]["job"]: row["value"][1] for row in result}

    until(lambda: up() == {"proxy": str(REPLICAS), "worker": "3", "balancer": "1"}, "all are scraped", limit_s=LIMIT_S)


def test_each_number_is_kept_under_the_engine_that_it_speaks_of(ready, campaign):
    """Not under the replica or worker that was asked for it."""
    query = urllib.parse.urlencode({"query": "count by (instance) (forebay_pressure)"})
    _, body = fetch(f"http://127.0.0.1:{ready.prometheus_port}/api/v1/query?{query}")
    rows = json.loads(body)["data"]["result"]
    assert {row["metric"]["instance"] for row in rows} == {"engine-1", "engine-2", "engine-3"}


@pytest.mark.parametrize("expression", expressions())
def test_no_expression_of_the_dashboard_comes_back_empty(ready, campaign, expression):
    """Each panel shows something of a cluster that has worked and met faults."""
    assert answers(ready, expression), expression


# --- the end


def test_down_leaves_nothing_behind(ready, campaign):
    """No container, no network and no volume."""
    assert ready.leftovers()

    ready.compose("down", "--volumes", "--remove-orphans")

    assert ready.leftovers() == []
