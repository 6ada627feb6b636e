"""What `forebay up` is told: one frozen struct, its ranges and its help texts. No parsing, no environment, no files."""

from typing import Annotated

import msgspec
from msgspec import Meta

from workers.config import InstanceConfig

SIMULATED_BY_DEFAULT = 4


class UpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a cluster on one machine."""

    engines: Annotated[
        tuple[InstanceConfig, ...], Meta(description="A running engine, repeatable; without one, --sim 4.")
    ] = ()
    sim: Annotated[int, Meta(ge=0, le=64, description="Simulated engines to start, beside those of --engine.")] = 0
    replicas: Annotated[int, Meta(ge=1, le=64, description="Gateway replicas.")] = 2
    host: Annotated[str, Meta(min_length=1, description="Address the replicas listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=1, le=65472, description="Port of replica 1; replica 2 listens on the next, and so on.")
    ] = 8000
    admin_port: Annotated[
        int,
        Meta(ge=1, le=65472, description="Port of replica 1's metrics and debug endpoints; the next is replica 2's."),
    ] = 9000
    debug_on_main_port: Annotated[
        bool, Meta(description="Serve /dashboard, /debug and /metrics on the API ports too.")
    ] = True
    redis: Annotated[
        str,
        Meta(
            pattern=r"^((rediss?(\+sentinel)?|unix)://.+)?$",
            description="A bus that runs already; by default one is embedded.",
        ),
    ] = ""
    strategy: Annotated[str, Meta(description="How replicas choose an instance; by default what [proxy] says.")] = ""
    slots: Annotated[
        int,
        Meta(ge=0, le=2048, description="Requests at once on an engine, simulated ones too; 0: what [worker] says."),
    ] = 0
    demo_traffic: Annotated[bool, Meta(description="Replay the sample of a recorded trace against the replicas.")] = (
        False
    )
    speedup: Annotated[
        float,
        Meta(
            gt=0,
            le=1000,
            description="How much faster than recorded the demo traffic is; 2 loads four simulated engines well.",
        ),
    ] = 2.0
    run_s: Annotated[
        float, Meta(ge=0, le=1e7, description="End by itself after this many seconds with a summary; 0: on Ctrl-C.")
    ] = 0.0
    run_dir: Annotated[
        str, Meta(description="Folder for the logs of the parts; by default a temporary one, kept if a part died.")
    ] = ""

    def __post_init__(self) -> None:
        """Refuse ports that two parts would share."""
        taken = set(self.ports) & set(self.admin_ports)
        if taken:
            raise ValueError(
                f"--port {self.port} and --admin-port {self.admin_port} share port {min(taken)}: "
                f"with --replicas {self.replicas} they must be {self.replicas} apart or more"
            )

    @property
    def ports(self) -> range:
        """The API ports of the replicas."""
        return range(self.port, self.port + self.replicas)

    @property
    def admin_ports(self) -> range:
        """The admin ports of the replicas."""
        return range(self.admin_port, self.admin_port + self.replicas)

    @property
    def simulated(self) -> int:
        """How many engines are simulated.

        >>> UpConfig().simulated, UpConfig(sim=2).simulated
        (4, 2)
        """
        return self.sim or (0 if self.engines else SIMULATED_BY_DEFAULT)
