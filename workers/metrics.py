"""What a worker counts about itself, for Prometheus. Each process has a registry of its own."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bus.publisher import Publisher
from bus.record import SIGNALS

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
        self._refused = Counter(
            "forebay_worker_refused_callers",
            "Requests without the secret of the proxies.",
            ["instance"],
            registry=self.registry,
        )
        self._inflight = Gauge(
            "forebay_worker_inflight", "Accepted and not finished.", ["instance"], registry=self.registry
        )
        self._publishers = _PublisherCollector()
        self.registry.register(self._publishers)

    def refused_caller(self, instance: str) -> None:
        """A caller without the secret was turned away."""
        self._refused.labels(instance).inc()

    def instance(self, name: str, *, inflight: Callable[[], float], publisher: Publisher) -> "InstanceMetrics":
        """Metrics of one instance; `inflight` and the publisher are asked at every scrape."""
        self._inflight.labels(name).set_function(inflight)
        self._publishers.add(publisher)
        return InstanceMetrics(self._requests, self._ttft.labels(name), self._error.labels(name), name)


class _PublisherCollector(Collector):
    """Reads what publishers count and last published, so that publishing pays nothing for it."""

    def __init__(self) -> None:
        self._publishers: list[Publisher] = []

    def add(self, publisher: Publisher) -> None:
        """Tell of one more instance."""
        self._publishers.append(publisher)

    def collect(self) -> Iterable[Metric]:
        """Records published, faults, reservations settled, and the pressure as it was last published."""
        published = CounterMetricFamily("forebay_worker_records_published", "Records published.", labels=["instance"])
        failures = CounterMetricFamily("forebay_worker_publish_failures", "Publishes that failed.", labels=["instance"])
        settled = CounterMetricFamily(
            "forebay_worker_reservations_settled", "Reservations that a publish ended.", labels=["instance"]
        )
        pressure = GaugeMetricFamily(
            "forebay_pressure", "Signals as last published, unknown left out.", labels=["instance", "signal"]
        )
        for publisher in self._publishers:
            name = publisher.instance
            published.add_metric([name], publisher.published)
            failures.add_metric([name], publisher.failures)
            settled.add_metric([name], publisher.settled)
            for signal in SIGNALS if publisher.last_record else ():
                value = getattr(publisher.last_record, signal)
                if value is not None:
                    pressure.add_metric([name, signal], value)
        yield from (published, failures, settled, pressure)


class InstanceMetrics:
    """Metrics of one instance, label lookups done once."""

    def __init__(self, requests: Counter, ttft: Histogram, error: Histogram, name: str) -> None:
        self._requests = requests
        self._ttft = ttft
        self._error = error
        self._name = name
        self._outcomes: dict[str, Counter] = {}

    def count(self, outcome: str) -> None:
        """One request ended as `outcome`: answered, rejected, declined, failed, silent, refused, late or cancelled.

        What the client did wrong is rejected, what the engine did not take is declined, what we did not, refused. A
        stream is silent that had begun and then brought nothing for too long.
        """
        child = self._outcomes.get(outcome)
        if child is None:
            child = self._outcomes[outcome] = self._requests.labels(self._name, outcome)
        child.inc()

    def saw_ttft(self, real_s: float, predicted_s: float) -> None:
        """A first event came after `real_s` seconds; `predicted_s` were predicted."""
        self._ttft.observe(real_s)
        if real_s > 0:
            self._error.observe(abs(predicted_s - real_s) / real_s)
