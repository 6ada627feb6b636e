"""Whether the configuration can be read: variables, table and defaults of each command, as the command reads them."""

from typing import TypeVar

import click
import msgspec

from deploy.checks.finding import Finding, note, right, wrong
from deploy.cluster.config import UpConfig
from deploy.complaint import one_line
from deploy.engine.config import EngineConfig
from deploy.options import config_of
from deploy.settings import PATH_KEY
from proxy.config import ProxyConfig
from workers.config import InstanceConfig, WorkerConfig

S = TypeVar("S", bound=msgspec.Struct)


class ReadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the commands would run with; None where that cannot be read."""

    findings: tuple[Finding, ...]
    proxy: ProxyConfig | None
    worker: WorkerConfig | None

    @property
    def buses(self) -> list[str]:
        """The buses that replicas and workers would use; one, if all is well."""
        return list(dict.fromkeys(config.redis for config in (self.proxy, self.worker) if config))

    @property
    def instances(self) -> tuple[InstanceConfig, ...]:
        """The engines that the workers would serve."""
        return self.worker.instances if self.worker else ()

    @property
    def engine_key_file(self) -> str:
        """The file that the workers would read the engines' key from."""
        return self.worker.engine_key_file if self.worker else ""


def read_all(ctx: click.Context) -> ReadSettings:
    """Return what every command would run with if it were started without flags."""
    findings: list[Finding] = []
    file = ctx.meta.get(PATH_KEY)
    findings.append(right("file", str(file)) if file else note("file", "none; variables and defaults only"))
    proxy = read(ctx, "proxy", ProxyConfig, findings)
    worker = read(ctx, "worker", WorkerConfig, findings)
    read(ctx, "engine", EngineConfig, findings)
    read(ctx, "up", UpConfig, findings)
    return ReadSettings(findings=tuple(findings), proxy=proxy, worker=worker)


def read(ctx: click.Context, name: str, struct: type[S], findings: list[Finding]) -> S | None:
    """Return one command's configuration, and note whether it could be read."""
    try:
        config = config_of(ctx, name, struct)
    except click.MissingParameter as error:
        findings.append(note(name, one_line(error).partition(": ")[2]))
        return None
    except click.UsageError as error:
        findings.append(wrong(name, one_line(error).partition(": ")[2], f"see forebay {name} --help"))
        return None
    findings.append(right(name, "configuration reads well"))
    return config
