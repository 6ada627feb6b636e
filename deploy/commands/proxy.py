"""`forebay proxy`: one replica of the gateway."""

import click

from deploy.allowed import LOG_LEVELS
from deploy.options import configured, one_of
from proxy.config import ProxyConfig
from proxy.strategies import STRATEGIES

EXAMPLE = """\b
Example: the third replica of a fleet, on its own ports
  forebay proxy --redis redis://10.0.0.2:6379/0 --host 0.0.0.0 --port 8002 --admin-port 9002"""


@click.command(epilog=EXAMPLE)
@configured(ProxyConfig, strategy=one_of(STRATEGIES), log_level=one_of(LOG_LEVELS))
def proxy(config: ProxyConfig) -> None:
    """Run one gateway replica: the OpenAI API on PORT, metrics and debug endpoints on ADMIN_PORT.

    It keeps nothing that another replica needs: run any number, anywhere, with the same --redis.
    """
    from proxy.app import run  # the server's libraries are loaded only where a server is started

    run(config)
