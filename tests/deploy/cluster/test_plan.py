from pathlib import Path

import pytest

from deploy.cluster.config import UpConfig
from deploy.cluster.plan import Surroundings, plan
from workers.config import InstanceConfig


def here(engines: int = 0, bus: tuple[str, ...] = ("valkey-server",), others: int = 0) -> Surroundings:
    """Return a machine with free ports from 5001 on."""
    return Surroundings(
        program=("forebay",),
        bus_command=bus,
        bus_url="redis://127.0.0.1:5000/0",
        engine_ports=range(5001, 5001 + engines),
        worker_admin_ports=range(5101, 5101 + engines + others),
        progress_file=Path("/run/progress"),
        report_file=Path("/run/report"),
    )


def names(config: UpConfig, surroundings: Surroundings) -> list[list[str]]:
    """Return the names of the parts by stage."""
    return [[part.name for part in stage] for stage in plan(config, surroundings).stages]


def test_each_part_is_a_process_of_its_own():
    """Two simulated engines, two replicas and traffic are eight processes with the bus."""
    assert names(UpConfig(sim=2, demo_traffic=True), here(2)) == [
        ["bus"],
        ["engine-sim-1", "engine-sim-2"],
        ["worker-sim-1", "worker-sim-2"],
        ["replica-1", "replica-2"],
        ["traffic"],
    ]


def test_engines_and_a_bus_that_run_already_are_not_started():
    """Only workers and replicas are left."""
    config = UpConfig(engines=(InstanceConfig(id="big", engine_url="http://h:1"),), redis="redis://h:1", replicas=1)
    assert config.simulated == 0
    assert names(config, here(bus=(), others=1)) == [[], [], ["worker-big"], ["replica-1"], []]


def test_replicas_listen_on_consecutive_ports():
    """Replica 2 listens on P+1 and A+1, and the traffic knows both."""
    parts = plan(UpConfig(port=7000, admin_port=7100, demo_traffic=True, speedup=2.5), here())
    words = " ".join(parts.replicas[1].command)
    assert "--port 7001 --admin-port 7101 --debug-on-main-port" in words
    traffic = " ".join(parts.traffic[0].command)
    assert "--target http://127.0.0.1:7000 --target http://127.0.0.1:7001" in traffic
    assert "--speedup 2.5" in traffic
    assert parts.traffic[0].is_repeated


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:7000"),
        ("::", "http://[::1]:7000"),
        ("::1", "http://[::1]:7000"),
        ("10.0.0.5", "http://10.0.0.5:7000"),
    ],
)
def test_traffic_goes_where_the_replicas_listen(host, url):
    """Those that listen on every address of a family are dialled at its loopback: `::` takes no IPv4 connection."""
    parts = plan(UpConfig(host=host, port=7000, demo_traffic=True), here())
    assert f"--target {url}" in " ".join(parts.traffic[0].command)


def test_what_is_not_said_is_left_to_the_commands_own_settings():
    """Strategy and slots are handed on only when given, so that [proxy] and [worker] hold otherwise."""
    silent, told = plan(UpConfig(), here(1)), plan(UpConfig(slots=8, strategy="round_robin"), here(1))
    assert "--strategy" not in silent.replicas[0].command
    assert "--slots" not in silent.workers[0].command
    assert "--strategy round_robin" in " ".join(told.replicas[0].command)
    assert "--slots 8" in " ".join(told.workers[0].command)
    assert "--max-num-seqs 8" in " ".join(told.engines[0].command)


def test_the_bus_is_handed_on_where_nobody_else_sees_it():
    """A URL may hold a password, and every user of a machine can read the words of a command."""
    parts = plan(UpConfig(), here(1))
    for part in (*parts.workers, *parts.replicas):
        assert here().bus_url in part.variables.values()
        assert here().bus_url not in part.command


@pytest.mark.parametrize(("port", "admin_port"), [(9000, 9000), (9001, 9000), (9000, 9001)])
def test_ports_that_two_listeners_would_share_are_refused(port, admin_port):
    """Two replicas need two ports and two admin ports, all different."""
    with pytest.raises(ValueError, match="share port 900"):
        UpConfig(port=port, admin_port=admin_port, replicas=2)


def test_the_commands_of_the_parts_are_commands_that_exist():
    """Every word that is handed to a part is an option that its command knows."""
    from deploy.cli import forebay

    parts = plan(UpConfig(sim=1, slots=4, strategy="least_load", demo_traffic=True), here(1))
    for part in (*parts.engines, *parts.workers, *parts.replicas, *parts.traffic):
        _, name, *words = part.command
        with forebay.make_context("forebay", [name, *words]) as group:
            command = forebay.get_command(group, name)
            assert command is not None
            command.make_context(name, list(words), parent=group).close()
