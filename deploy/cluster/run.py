"""`forebay up` from its first check to its summary: prepare, start, watch, stop.

Owns the folder of the run. What is started and how it is shown is decided elsewhere.
"""

import asyncio
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import aiohttp
import click
import msgspec

from bus.errors import ForebayError
from deploy.admin import admin_headers, admin_session
from deploy.cluster.cluster import Cluster, check_ports
from deploy.cluster.config import UpConfig
from deploy.cluster.engines import complaint, without_model
from deploy.cluster.gauge import Gauge, report_of
from deploy.cluster.interrupts import interrupts, unless_stopped
from deploy.cluster.plan import ADMIN_HOST, Plan, Surroundings, dialled, plan
from deploy.cluster.screen import Screen, screen_for_output
from deploy.cluster.view import summary
from deploy.cluster.watch import Watch
from deploy.embedded import find_server, server_command, serving_pid
from deploy.ports import accepts, free_ports
from proxy.config import ProxyConfig


async def run_cluster(config: UpConfig, replicas: ProxyConfig, *, settings: Path | None = None) -> None:
    """Run a cluster until it is told to stop or its time is over; raises ForebayError if it cannot start.

    `replicas` is what a proxy of this configuration is told beside its flags: how it is to be spoken to.
    """
    headers = admin_headers(replicas.admin_key_file)
    check_ports(config.host, config.ports, "--port")
    check_ports(ADMIN_HOST, config.admin_ports, "--admin-port")
    folder = made_folder(config)
    is_worth_keeping = True
    try:
        async with admin_session(headers) as session:
            is_worth_keeping = await run_in(folder, config, replicas, session, settings)
    finally:
        if is_worth_keeping or config.run_dir:
            click.echo(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def run_in(
    folder: Path, config: UpConfig, replicas: ProxyConfig, session: aiohttp.ClientSession, settings: Path | None
) -> bool:
    """Run a cluster with its files in a folder; return whether anything died: then somebody may want to read them."""
    here = surroundings(config, folder, settings)
    parts, stop, screen = plan(config, here), asyncio.Event(), screen_for_output()
    cluster = Cluster(parts, folder, on_death=screen.death)
    with interrupts(stop, cluster.hurry):
        async with cluster:
            click.echo(f"starting {sum(map(len, parts.stages))} processes, logs in {folder}")
            started = await unless_stopped(stop, start(cluster, parts, config, here))
            if not started:
                return bool(cluster.deaths)
            click.echo(greeting(config, scheme="https" if replicas.tls_cert else "http"))
            missing = await unless_stopped(stop, without_model(session, admin_urls(config)[0], config.engines))
            for engine in missing or ():
                click.echo(complaint(engine))
            lines = await watched(cluster, config, here, session, stop, screen)
        click.echo("\n".join(lines))  # when everything has ended, so that it stays the last thing seen
        return bool(cluster.deaths)


async def start(cluster: Cluster, parts: Plan, config: UpConfig, here: Surroundings) -> bool:
    """Start the stages, each when the one before is ready."""
    host = dialled(config.host).strip("[]")
    await cluster.start(parts.bus, [partial(is_bus, here.bus_port)] if parts.bus else [])
    await cluster.start(parts.engines, [partial(accepts, "127.0.0.1", port) for port in here.engine_ports])
    await cluster.start(parts.workers, [partial(accepts, "127.0.0.1", port) for port in here.worker_admin_ports])
    listeners = [(host, port) for port in config.ports] + [(ADMIN_HOST, port) for port in config.admin_ports]
    await cluster.start(parts.replicas, [partial(accepts, *listener) for listener in listeners])
    await cluster.start(parts.traffic)
    return True


def is_bus(port: int) -> bool:
    """Return whether the embedded bus answers."""
    return serving_pid(port) is not None


async def watched(
    cluster: Cluster,
    config: UpConfig,
    here: Surroundings,
    session: aiohttp.ClientSession,
    stop: asyncio.Event,
    screen: Screen,
) -> list[str]:
    """Watch until the end, end the traffic, and return the summary."""
    gauge = Gauge(admin_urls(config), here.progress_file if config.demo_traffic else None)
    watch = Watch(cluster, gauge)
    with screen:
        await watch.until(stop, session, screen, run_s=config.run_s)
    click.echo("stopping; Ctrl-C kills what takes its time")
    stop.set()  # from here on a signal means haste, also where the time was over by itself
    await cluster.stop(cluster.plan.traffic)
    last = await watch.look(session)
    report = report_of(here.report_file) if config.demo_traffic else None
    is_whole = report is not None and not cluster.restarts.get("traffic")
    if report and report.ttft_ms and is_whole:  # percentiles of the whole run, not of its end
        totals = msgspec.structs.replace(last.totals, ttft_p50_ms=report.ttft_ms.p50, ttft_p99_ms=report.ttft_ms.p99)
        last = msgspec.structs.replace(last, totals=totals)
    return summary(last, gauge.shares)


def surroundings(config: UpConfig, folder: Path, settings: Path | None) -> Surroundings:
    """Return what this machine gives to the plan: free ports, programs, files."""
    engines, workers = config.simulated, config.simulated + len(config.engines)
    bus_port, *ports = free_ports(1 + engines + workers)
    bus_folder = folder / "bus"
    if not config.redis:
        made(bus_folder)
    return Surroundings(
        program=(*program(), *(["--config", str(settings)] if settings else [])),
        bus_command=() if config.redis else tuple(server_command(find_server(), port=bus_port, folder=bus_folder)),
        bus_port=bus_port,
        bus_url=config.redis or f"redis://127.0.0.1:{bus_port}/0",
        engine_ports=ports[:engines],
        worker_admin_ports=ports[engines:],
        progress_file=folder / "traffic.progress",
        report_file=folder / "traffic.json",
    )


def program() -> tuple[str, ...]:
    """Return the words that run this very `forebay`, wherever they are run.

    Without the working directory on the module path: a folder `deploy` or `proxy` there is somebody else's.
    """
    return (sys.executable, "-P", "-m", "deploy.cli")


def made_folder(config: UpConfig) -> Path:
    """Return the folder of the run, made if need be."""
    return made(Path(config.run_dir)) if config.run_dir else Path(tempfile.mkdtemp(prefix="forebay-up-"))


def made(folder: Path) -> Path:
    """Return a folder that exists; raises ForebayError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForebayError(f"{folder} cannot be made: {error.strerror or error}") from error
    return folder


def admin_urls(config: UpConfig) -> list[str]:
    """Return each replica's admin listener."""
    return [f"http://{ADMIN_HOST}:{port}" for port in config.admin_ports]


def greeting(config: UpConfig, *, scheme: str) -> str:
    """Return what a newcomer needs to know: where to send requests, and one to try."""
    urls = [f"{scheme}://{dialled(config.host)}:{port}" for port in config.ports]
    return (
        f"Forebay is up: {' '.join(urls)}\n  curl {urls[0]}/v1/models\n  dashboard: {admin_urls(config)[0]}/dashboard"
    )
