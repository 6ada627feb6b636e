"""What a replica counts, for Prometheus; the numbers of the selection and the readers are asked for at each scrape."""

import collections
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.door import Door
from proxy.selection import Selection
from proxy.uplinks import Uplinks

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ProxyMetrics:
    """Counters and histograms of one replica."""

    def __init__(self, selection: Selection, uplinks: Uplinks, door: Door, open_requests: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        Gauge(
            "forebay_open_requests",
            "Requests of clients that this replica has taken and not ended; what replicas are scaled by.",
            registry=self.registry,
        ).set_function(open_requests)
        self._requests = Counter("forebay_requests", "Requests by status.", ["status"], registry=self.registry)
        self._ttft = Histogram(
            "forebay_ttft_seconds",
            "From a request's arrival to its first event.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._predicted_ttft = Histogram(
            "forebay_ttft_predicted_seconds",
            "What was predicted for the requests of forebay_ttft_seconds, when their instance was chosen.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.retries = Counter("forebay_retries", "Requests sent to another instance.", registry=self.registry)
        self.moved = Counter(
            "forebay_moved", "Waiting requests taken from a worker that does not answer.", registry=self.registry
        )
        self.lost_lines = Counter(
            "forebay_log_lines_lost", "Lines of the access log that nobody took.", registry=self.registry
        )
        self.broken = Counter("forebay_broken_streams", "Streams that ended early.", registry=self.registry)
        self.registry.register(_SelectionCollector(selection))
        self.registry.register(_SecurityCollector(uplinks, door))
        self._by_status: dict[int, Counter] = {}
        self._work: collections.Counter[int] = collections.Counter()

    def count(self, status: int, *, is_work: bool = True) -> None:
        """One request was answered with `status`; a look at the models is no work."""
        self._work[status] += is_work
        child = self._by_status.get(status)
        if child is None:
            child = self._by_status[status] = self._requests.labels(str(status))
        child.inc()

    def answers(self) -> dict[str, int]:
        """Requests for work answered so far, by status."""
        return {str(status): count for status, count in self._work.items() if count}

    def saw_ttft(self, seconds: float, predicted_s: float | None) -> None:
        """A first event, or a whole plain answer, came after `seconds`; `predicted_s` were predicted, if any."""
        self._ttft.observe(seconds)
        if predicted_s is not None:
            self._predicted_ttft.observe(predicted_s)


class _SelectionCollector(Collector):
    """Reads the counts where they are kept, so that the request path pays nothing for them."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def collect(self) -> Iterable[Metric]:
        """Counts of choices, tiers, faults and requests in flight."""
        selection = self._selection
        selected = CounterMetricFamily("forebay_selected", "Requests by instance chosen.", labels=["instance"])
        for instance, count in selection.selected.items():
            selected.add_metric([instance], count)
        yield selected
        tiers = CounterMetricFamily("forebay_selection_tier", "Choices by rung of the ladder.", labels=["tier"])
        for tier, count in selection.tiers.items():
            tiers.add_metric([tier], count)
        yield tiers
        inflight = GaugeMetricFamily("forebay_inflight", "Sent and not ended, by instance.", labels=["instance"])
        for instance, count in selection.inflight.items():
            inflight.add_metric([instance], count)
        yield inflight
        faults = CounterMetricFamily(
            "forebay_unknown_signals", "Records and signals that could not be believed.", labels=["pool", "reason"]
        )
        failures = CounterMetricFamily("forebay_bus_read_failures", "Readings of the bus that failed.", labels=["pool"])
        reads = CounterMetricFamily("forebay_bus_reads", "Readings of the bus.", labels=["pool"])
        for pool, reader in selection.readers.items():
            for reason, count in reader.faults.items():
                faults.add_metric([pool, reason], count)
            failures.add_metric([pool], reader.read_failures)
            reads.add_metric([pool], reader.reads)
        yield from (faults, failures, reads)
        reservations = CounterMetricFamily(
            "forebay_reservations",
            "Choices by the bus: made there; failed, not_asked, too_late were decided alone; given_back not delivered.",
            labels=["pool", "outcome"],
        )
        for pool, each in selection.reservations.items():
            for outcome, count in each.outcomes().items():
                reservations.add_metric([pool, outcome], count)
        yield reservations
        yield from self._instances()

    def _instances(self) -> Iterable[Metric]:
        """What the last view says of each instance, unknown left out: the age of its record, what is in transit."""
        age = GaugeMetricFamily(
            "forebay_record_age_seconds", "Age of the record, known instances.", labels=["instance"]
        )
        tokens = GaugeMetricFamily("forebay_in_transit_tokens", "Reserved, in no record yet.", labels=["instance"])
        requests = GaugeMetricFamily("forebay_in_transit_requests", "Reserved, in no record yet.", labels=["instance"])
        states = {"ready": 0, "draining": 0, "failing": 0, "unknown": 0}
        now_s = time.monotonic()
        for reader in self._selection.readers.values():
            for pressure in reader.last_view.live(now_s):
                name, record = [pressure.instance], pressure.record
                states["unknown" if record is None else record.state] += 1
                if record is not None and pressure.age_ms is not None:
                    age.add_metric(name, pressure.age_ms / 1000)
                tokens.add_metric(name, pressure.in_transit_tokens)
                requests.add_metric(name, pressure.in_transit_requests)
        counts = GaugeMetricFamily(
            "forebay_instances", "Instances by state as this replica sees them.", labels=["state"]
        )
        for state, count in states.items():
            counts.add_metric([state], count)
        yield from (age, tokens, requests, counts)


class _SecurityCollector(Collector):
    """Who was kept out: clients at the door, workers by the allow-list."""

    def __init__(self, uplinks: Uplinks, door: Door) -> None:
        self._uplinks = uplinks
        self._door = door

    def collect(self) -> Iterable[Metric]:
        """Counts of refusals, and of times at which a limit could not be shared."""
        clients = CounterMetricFamily(
            "forebay_refused_clients", "Clients turned away: no_key, wrong_key, or a limit by name.", labels=["reason"]
        )
        for reason, count in self._door.refusals.items():
            clients.add_metric([reason], count)
        yield clients
        yield CounterMetricFamily(
            "forebay_refused_workers",
            "Worker URLs on the bus that may not be dialled, each once.",
            value=self._uplinks.refusals,
        )
        yield CounterMetricFamily(
            "forebay_key_limit_failures", "Times the bus did not say what a key may.", value=self._door.failures
        )
