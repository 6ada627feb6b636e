"""What a proxy replica is told at start: one frozen struct, its ranges and its help texts.

The `forebay proxy` command, its FOREBAY_PROXY_… variables and the `[proxy]` table are made from these fields;
defaults and ranges stand only here. No parsing, no environment, no files.
"""

from typing import Annotated

from msgspec import Meta

from proxy.networks import DEFAULT_NETWORKS, Networks
from proxy.strategies.least_load import LeastLoadWeights
from proxy.strategies.settings import CostSettings


class ProxyConfig(CostSettings, frozen=True, kw_only=True):
    """Everything a replica needs to know before it starts."""

    redis: Annotated[str, Meta(description="Bus: redis://, rediss://, redis+sentinel:// or unix:// URL.")] = (
        "redis://127.0.0.1:6379/0"
    )
    pool: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")], ...],
        Meta(min_length=1, description="Pool to serve, repeatable."),
    ] = ("default",)
    host: Annotated[str, Meta(description="Address the replica listens on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of the OpenAI API; 0: the system chooses.")] = 8000
    admin_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of /metrics, /debug and /dashboard; 0: the system chooses.")
    ] = 9000
    admin_host: Annotated[
        str, Meta(description="Address of the admin listener; beyond loopback it wants --admin-key-file.")
    ] = "127.0.0.1"
    admin_key_file: Annotated[
        str, Meta(description="File whose first line is the key of the admin pages, /health and /ready excepted.")
    ] = ""
    reuse_port: Annotated[
        bool, Meta(description="Share the port with other replicas on this machine (SO_REUSEPORT).")
    ] = False
    debug_on_main_port: Annotated[
        bool, Meta(description="Serve /dashboard, /debug and /metrics on the API port too.")
    ] = False
    name: Annotated[
        str,
        Meta(description="Name of this replica in logs and debug output; by default HOST:PORT as listened on."),
    ] = ""
    strategy: Annotated[str, Meta(description="How an instance is chosen.")] = "predicted_ttft"
    weight: LeastLoadWeights = LeastLoadWeights()
    tokenizer: Annotated[
        tuple[str, ...], Meta(description="MODEL=FILE, repeatable: a tokenizer.json that counts prompts exactly.")
    ] = ()
    read_budget_ms: Annotated[
        int, Meta(ge=1, le=10_000, description="Longest wait for an answer of the bus; a choice asks twice, ms.")
    ] = 25
    tries: Annotated[
        int,
        Meta(ge=1, le=64, description="Instances that may break on one request before its first event."),
    ] = 3
    retry_window_s: Annotated[
        float, Meta(ge=0, le=86_400, description="A failed request is tried again up to this long after it came, s.")
    ] = 900.0
    connect_timeout_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="Longest wait for a connection to a worker, ms.")
    ] = 1000
    first_event_timeout_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Longest wait for a worker's answer to begin, s.")
    ] = 900.0
    request_timeout_s: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Longest whole request, s, less where its client says so; 0: no limit."),
    ] = 0.0
    probe_timeout_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="Longest wait for the health of a worker whose record is gone, ms.")
    ] = 500
    silence_timeout_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Longest silence between two bytes of a running answer, s.")
    ] = 330.0
    head_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description="Longest time for a request's head to come, s.")
    ] = 15.0
    keepalive_s: Annotated[
        float,
        Meta(
            gt=0, le=86_400, description="An idle connection of a client is kept so long; longer than balancers do, s."
        ),
    ] = 75.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Longest time for a request's body to come, s.")
    ] = 120.0
    body_limit_mb: Annotated[int, Meta(ge=1, le=4096, description="Largest request body, MiB.")] = 64
    api_keys: Annotated[
        str, Meta(description="File of hashed API keys, see `forebay key`; without it every client is served.")
    ] = ""
    secret_file: Annotated[
        str, Meta(description="File whose first line is the secret that workers ask for (never logged).")
    ] = ""
    worker_networks: Annotated[
        tuple[str, ...],
        Meta(description="Network, address, host name or .suffix of workers that may be dialled, repeatable."),
    ] = DEFAULT_NETWORKS
    tls_cert: Annotated[
        str,
        Meta(description="PEM file of the certificate chain, read again when it changes: listeners speak TLS."),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key.")] = ""
    worker_ca: Annotated[
        str, Meta(description="PEM file of the CA that signed the workers' certificates: they must speak TLS then.")
    ] = ""
    forward_authorization: Annotated[
        bool, Meta(description="Send the clients' Authorization header on to workers.")
    ] = False
    allow_engine_admin: Annotated[
        bool, Meta(description="Let clients load and unload LoRA adapters of engines (/v1/load_lora_adapter).")
    ] = False
    drain_s: Annotated[
        float, Meta(ge=0, le=86_400, description="How long running requests may take to finish after SIGTERM, s.")
    ] = 30.0
    access_log: Annotated[bool, Meta(description="One JSON line a request on standard output.")] = True
    otlp_endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://\S+)?$",
            description="OpenTelemetry collector (OTLP over HTTP) that gets spans of requests; none without it.",
        ),
    ] = ""
    log_level: Annotated[str, Meta(description="debug, info, warning or error.")] = "info"

    def __post_init__(self) -> None:
        """Refuse what does not hold together."""
        try:
            Networks(self.worker_networks)
        except ValueError as error:
            raise ValueError(f"--worker-networks: {error}") from error
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key: one needs the other")
        if self.debug_on_main_port and self.api_keys and not self.admin_key_file:
            raise ValueError("--debug-on-main-port with --api-keys: the debug pages need --admin-key-file then")
