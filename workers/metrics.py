"""What a worker counts about itself, for Prometheus. Each process has a registry of its own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_RATIOS = (0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1, 2, 5, 10)


class WorkerMetrics:
    """Counters and histograms of all instances of one worker process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "forebay_worker_requests", "Requests by outcome.", ["instance", "outcome"], registry=self.registry
        )
        self._ttft = Histogram(
            "forebay_worker_ttft_seconds",
            "From acceptance to the first event.",
            ["instance"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._error = Histogram(
            "forebay_worker_ttft_prediction_error",
            "|predicted - real| / real of the time to first token, as predicted at acceptance.",
            ["instance"],
            buckets=_RATIOS,
            registry=self.registry,
        )
        self._inflight = Gauge(
            "forebay_worker_inflight", "Accepted and not finished.", ["instance"], registry=self.registry
        )
        self._published = Gauge(
            "forebay_worker_records_published", "Records published so far.", ["instance"], registry=self.registry
        )

    def instance(
        self, name: str, *, inflight: Callable[[], float], published: Callable[[], float]
    ) -> "InstanceMetrics":
        """Metrics of one instance; the callables are asked at every scrape."""
        self._inflight.labels(name).set_function(inflight)
        self._published.labels(name).set_function(published)
        return InstanceMetrics(self._requests, self._ttft.labels(name), self._error.labels(name), name)


class InstanceMetrics:
    """Metrics of one instance, label lookups done once."""

    def __init__(self, requests: Counter, ttft: Histogram, error: Histogram, name: str) -> None:
        self._requests = requests
        self._ttft = ttft
        self._error = error
        self._name = name
        self._outcomes: dict[str, Counter] = {}

    def count(self, outcome: str) -> None:
        """One request ended as `outcome`: answered, failed, refused or cancelled."""
        child = self._outcomes.get(outcome)
        if child is None:
            child = self._outcomes[outcome] = self._requests.labels(self._name, outcome)
        child.inc()

    def saw_ttft(self, real_s: float, predicted_s: float) -> None:
        """A first event came after `real_s` seconds; `predicted_s` were predicted."""
        self._ttft.observe(real_s)
        if real_s > 0:
            self._error.observe(abs(predicted_s - real_s) / real_s)
