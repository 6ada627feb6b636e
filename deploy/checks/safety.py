"""Who could come in that should not: listeners beyond this machine without a key, a secret or TLS. Settings only."""

from collections.abc import Iterator

from bus.hop.tls import is_loopback
from deploy.checks.finding import Finding, note, right
from deploy.checks.settings import ReadSettings


def check_safety(settings: ReadSettings) -> Iterator[Finding]:
    """Yield a note for each open door; on loopback there is none."""
    found = [*_proxy(settings), *_worker(settings)]
    yield from found
    if not found and (settings.proxy or settings.worker):
        yield right("safety", "no listener beyond this machine is open to all")


def _proxy(settings: ReadSettings) -> Iterator[Finding]:
    config = settings.proxy
    if config is None:
        return
    where = f"proxy {config.host}:{config.port}"
    if not is_loopback(config.host):
        if not config.api_keys:
            yield note(where, "serves whoever reaches it", "make keys with `forebay key new NAME` and set api_keys")
        if not config.tls_cert:
            yield note(
                where, "keys and prompts come in plain text", "set tls_cert and tls_key, or have a balancer do it"
            )
        if config.debug_on_main_port and not config.admin_key_file:
            yield note(where, "shows the debug pages to all", "set admin_key_file, or no debug_on_main_port")
    if not is_loopback(config.admin_host) and not config.admin_key_file:
        yield note(
            f"proxy {config.admin_host}:{config.admin_port}", "shows the admin pages to all", "set admin_key_file"
        )
    if config.forward_authorization and config.api_keys:
        yield note(where, "engines see the clients' API keys", "set no forward_authorization beside api_keys")


def _worker(settings: ReadSettings) -> Iterator[Finding]:
    config = settings.worker
    if config is None:
        return
    if not is_loopback(config.host) and not config.secret_file:
        yield note(
            f"worker {config.host}",
            "takes requests from whoever reaches it, past keys and limits",
            "set the same secret_file in [worker] and [proxy]",
        )
    if not is_loopback(config.admin_host) and not config.admin_key_file:
        yield note(f"worker {config.admin_host}", "shows its admin pages to all", "set admin_key_file")
    has_secret = settings.proxy is not None and bool(settings.proxy.secret_file)
    if settings.proxy is not None and bool(config.secret_file) and not has_secret:
        yield note("safety", "workers ask for a secret that [proxy] does not know", "set the same secret_file in both")
