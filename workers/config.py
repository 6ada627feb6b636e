"""What a worker process is told at start: one frozen struct, its ranges and its help texts.

The `forebay worker` command, its FOREBAY_WORKER_… variables and the `[worker]` table are made from these fields;
defaults and ranges stand only here. No parsing, no environment, no files.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from workers.models import Aliases


class InstanceConfig(msgspec.Struct, frozen=True):
    """One engine that this process owns the queue of."""

    id: str
    engine_url: str


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs to know before it starts."""

    redis: Annotated[str, Meta(description="Bus: redis://, rediss://, redis+sentinel:// or unix:// URL.")] = (
        "redis://127.0.0.1:6379/0"
    )
    pool: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}$",
            description="Pool the instances belong to: the engines that can answer the same requests.",
        ),
    ] = "default"
    instances: Annotated[
        tuple[InstanceConfig, ...], Meta(min_length=1, description="The engines: [ID=]URL, repeatable.")
    ]
    engine_kind: Annotated[
        str, Meta(description="auto, vllm, sglang, llamacpp, tgi or openai: how load signals are read.")
    ] = "auto"
    alias: Annotated[
        tuple[str, ...],
        Meta(description="NAME=MODEL, repeatable: clients may ask for MODEL of these engines by NAME too."),
    ] = ()
    engine_key_file: Annotated[
        str, Meta(description="File whose first line is the API key sent to the engines (never logged).")
    ] = ""
    host: Annotated[str, Meta(description="Address the worker listens on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="First port; instance i listens on PORT + i; 0 lets the system choose.")
    ] = 0
    advertise_host: Annotated[
        str, Meta(description="Host name that proxies dial; by default the address listened on.")
    ] = ""
    admin_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of /metrics and /debug; 0: the system chooses.")
    ] = 0
    admin_host: Annotated[
        str, Meta(description="Address of the admin listener; beyond loopback it wants --admin-key-file.")
    ] = "127.0.0.1"
    admin_key_file: Annotated[
        str, Meta(description="File whose first line is the key of the admin pages, /health excepted.")
    ] = ""
    secret_file: Annotated[
        str, Meta(description="File whose first line is the secret that proxies must show (never logged).")
    ] = ""
    tls_cert: Annotated[
        str,
        Meta(description="PEM file of the certificate chain, read again when it changes: listeners speak TLS."),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key.")] = ""
    engine_ca: Annotated[
        str, Meta(description="PEM file of the CA that signed the engines' certificates; by default the machine's CAs.")
    ] = ""
    forward_authorization: Annotated[
        bool, Meta(description="Send the clients' Authorization header on to engines, unless they have a key.")
    ] = False
    slots: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="Requests that run at once on one engine: as many as it does (vLLM: --max-num-seqs).",
        ),
    ] = 16
    queue_limit: Annotated[
        int, Meta(ge=0, le=100_000, description="Requests that may wait for a slot; more are answered 429.")
    ] = 256
    queue_timeout_s: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Longest wait for a slot, s, then 503 queue_timeout; 0: no limit."),
    ] = 0.0
    prepare_concurrency: Annotated[
        int, Meta(ge=1, le=4096, description="Request bodies read and prepared at once.")
    ] = 32
    ttl_ms: Annotated[
        int, Meta(ge=100, le=60_000, description="Life of a pressure record, ms; a third of it is the heartbeat.")
    ] = 1500
    registration_ttl_s: Annotated[int, Meta(ge=1, le=3600, description="Life of a registration, s.")] = 30
    scrape_interval_ms: Annotated[
        int, Meta(ge=50, le=60_000, description="Time between two readings of the engine's metrics, ms.")
    ] = 500
    connect_timeout_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="Longest wait for a connection to the engine, ms.")
    ] = 2000
    first_event_timeout_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Longest wait for the first event or the plain answer, s.")
    ] = 600.0
    silence_timeout_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Longest silence of a running stream, s; a tool call may come in one piece."),
    ] = 300.0
    drain_s: Annotated[
        float, Meta(ge=0, le=86_400, description="How long running requests may take to finish after SIGTERM, s.")
    ] = 30.0
    prior_prefill_tokens_per_s: Annotated[
        float, Meta(gt=0, le=1e9, description="Prefill speed assumed until it has been learned, tokens/s.")
    ] = 4000.0
    prior_decode_step_ms: Annotated[
        float, Meta(gt=0, le=60_000, description="Decode step assumed until it has been learned, ms.")
    ] = 30.0
    prior_output_tokens: Annotated[
        float, Meta(ge=1, le=1e6, description="Tokens of an answer assumed until learned.")
    ] = 256.0
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
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key: one needs the other")
        count = len(self.instances)
        if self.port and self.port + count - 1 > 65535:
            raise ValueError(f"--port: {count} engines from port {self.port} on go beyond port 65535")
        try:
            Aliases(self.alias)
        except ValueError as error:
            raise ValueError(f"--alias: {error}") from error
