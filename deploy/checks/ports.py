"""Whether the ports that the configured commands would listen on are free."""

from collections.abc import Iterator

from deploy.checks.finding import Finding, right, wrong
from deploy.checks.settings import ReadSettings
from deploy.ports import why_busy


def check_ports(settings: ReadSettings) -> Iterator[Finding]:
    """Yield a finding for each port; a running Forebay holds its ports, and that is said."""
    for name, host, port, option in listeners(settings):
        subject = f"{name} {host}:{port}"
        reason = why_busy(host, port)
        if reason:
            yield wrong(subject, reason, f"end what listens there (a running Forebay does), or choose another {option}")
        else:
            yield right(subject, "free")


def listeners(settings: ReadSettings) -> Iterator[tuple[str, str, int, str]]:
    """Yield command, host, port and option of every fixed port; port 0 is always free."""
    if settings.proxy:
        config = settings.proxy
        yield from (
            ("proxy", config.host, port, option)
            for port, option in ((config.port, "port"), (config.admin_port, "admin_port"))
            if port
        )
    if settings.worker and settings.worker.port:
        for index in range(len(settings.worker.instances)):
            yield "worker", settings.worker.host, settings.worker.port + index, "port"
    if settings.worker and settings.worker.admin_port:
        yield "worker", settings.worker.host, settings.worker.admin_port, "admin_port"
