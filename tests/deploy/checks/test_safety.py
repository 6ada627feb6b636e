import pytest

from deploy.checks.safety import check_safety
from deploy.checks.settings import ReadSettings
from proxy.config import ProxyConfig
from workers.config import InstanceConfig, WorkerConfig

INSTANCES = (InstanceConfig("a", "http://127.0.0.1:1"),)


def found(proxy: dict[str, object] | None = None, worker: dict[str, object] | None = None) -> str:
    """What is said of two configurations."""
    settings = ReadSettings(
        findings=(), proxy=ProxyConfig(**(proxy or {})), worker=WorkerConfig(instances=INSTANCES, **(worker or {}))
    )
    return "\n".join(map(str, check_safety(settings)))


def test_on_one_machine_nothing_is_open():
    """The defaults listen on loopback."""
    assert found().startswith("right  safety")


@pytest.mark.parametrize(
    ("proxy", "worker", "says"),
    [
        ({"host": "0.0.0.0"}, {}, "serves whoever reaches it"),
        ({"host": "0.0.0.0", "api_keys": "f"}, {}, "plain text"),
        ({"host": "10.0.0.1", "debug_on_main_port": True}, {}, "debug pages"),
        ({"admin_host": "::"}, {}, "admin pages to all"),
        ({"api_keys": "f", "forward_authorization": True}, {}, "see the clients' API keys"),
        ({}, {"host": "0.0.0.0"}, "past keys and limits"),
        ({}, {"admin_host": "0.0.0.0"}, "its admin pages"),
        ({}, {"secret_file": "f"}, "does not know"),
    ],
)
def test_an_open_door_is_told_with_what_to_do(proxy, worker, says):
    """One line a door."""
    text = found(proxy, worker)
    assert says in text
    assert "→ " in text


def test_a_guarded_set_up_is_right():
    """With everything set nothing is left to say."""
    proxy = {"host": "0.0.0.0", "api_keys": "k", "tls_cert": "c", "tls_key": "k", "secret_file": "s"}
    guarded = {"admin_host": "0.0.0.0", "admin_key_file": "a"}
    assert found({**proxy, **guarded}, {"host": "0.0.0.0", "secret_file": "s", **guarded}).startswith("right  safety")
