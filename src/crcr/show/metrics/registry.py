"""Prometheus metrics, in a registry of their own.

Other rooms count through these methods and do not know Prometheus. Labels come from closed sets, so that no caller can
create series without end. `LAYERS` sorts error codes by the layer that refused; a test compares it with the app's codes.
The gauges read from the store at a scrape are dropped when it does not answer: an old number would look fresh.
"""

from collections.abc import Callable, Iterator
from time import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crcr import __version__
from crcr.decide.checks.gate import GateState
from crcr.decide.health.relay import HealthState
from crcr.decide.model import EffectKind
from crcr.decide.views.overview import EffectQueue, Vitals
from crcr.show.metrics.github import GitHubMetrics
from crcr.show.metrics.page_process import PageProcessMetrics, page_samples
from crcr.show.metrics.store import StoreMetrics

_EVENTS = frozenset(
    {
        *(
            "pull_request",
            "push",
            "merge_group",
            "check_run",
            "check_suite",
            "issue_comment",
            "issues",
            "ping",
        ),
        *("workflow_run", "workflow_job", "installation", "installation_repositories", "repository"),
        *("pull_request_review", "nightly", "periodic"),
    }
)
_LATENCIES_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class RelayMetrics:
    def __init__(self, now_s: Callable[[], float] = time) -> None:
        """`now_s` returns the seconds since 1970."""
        self._now_s = now_s
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.github = GitHubMetrics(self.registry)
        self.store = StoreMetrics(self.registry)
        self.pages = PageProcessMetrics(self.registry)
        self._queues = QueueMetrics(self.registry)
        self._deliveries = self._counter("deliveries", "Webhook deliveries", "event", "outcome")
        self._callbacks = self._counter("callbacks", "Callbacks by what was answered", "outcome")
        self._ingested = self._counter("ingested", "Results of other relays by what was answered", "outcome")
        self._refusals = self._counter(
            "refusals", "Refused requests by the layer that refused", "door", "layer"
        )
        self._by_outcome: dict[str, Counter] = {}  # saves the hot path the look-up of its label
        self._effects = self._counter("effects", "Attempts at effects", "kind", "outcome")
        self._latency = self._histogram(
            "dispatch_latency_seconds", "From the arrival of a webhook to its dispatch being sent"
        )
        self._live_delay = self._histogram("live_delay_seconds", "From a change to its event on open pages")
        self._streams = self._gauge("live_streams", "Open live streams")
        self.replica_lag_s: float | None = None
        self.registry.register(_ReplicaLag(self))
        self._pages = self._counter(
            "pages", "Pages and queries that may be kept, by where the answer came from", "source"
        )
        self._pages_refused = self._counter(
            "pages_refused", "Pages and queries refused because too many wait"
        )
        self._pages_waiting = self._gauge("pages_waiting", "Pages and queries that wait for others to end")
        self._key_reads = self._counter("key_reads", "Readings of an issuer's keys", "outcome")
        self._limiter_up = self._gauge("limiter_up", "Whether the limiter answered its last request")
        self._limiter_faults = self._counter(
            "limiter_unavailable", "Requests that the limiter did not answer"
        )
        self._doors = self._gauge("doors_open", "Whether this process accepts webhooks and callbacks")
        self._leader = self._gauge("leader", "Whether this process is the leader")
        self._worker = Gauge(
            "crcr_worker_seen_timestamp_seconds",
            "Last cycle of the worker",
            ["worker"],
            registry=self.registry,
        )
        Gauge("crcr_info", "This release", ["version"], registry=self.registry).labels(__version__).set(1)
        self._limiter_up.set(1)
        self._set_initial_zeros()

    def _set_initial_zeros(self) -> None:
        """An alert on a rate needs an initial zero."""
        for outcome in ("read", "failed"):
            self._key_reads.labels(outcome)
        for answer in ("kept", "rendering", "shared_rendering"):
            self._pages.labels(answer)
        for event in _EVENTS:
            self._deliveries.labels(event, "recovered taken")

    def delivery(self, event: str, outcome: str) -> None:
        """`outcome`: taken, repeat, ignored, pong, one of those after `recovered`, or an error's code."""
        self._deliveries.labels(event if event in _EVENTS else "other", outcome).inc()
        self._refused("webhook", outcome)

    def callback(self, outcome: str) -> None:
        """`outcome`: in_progress, completed, repeat, ignored, sandbox, or a refusal's code."""
        child = self._by_outcome.get(outcome)
        if child is None:
            child = self._by_outcome[outcome] = self._callbacks.labels(outcome)
        child.inc()
        self._refused("callback", outcome)

    def ingest(self, outcome: str) -> None:
        """`outcome`: in_progress, completed, repeat, or a refusal's code."""
        self._ingested.labels(outcome).inc()
        self._refused("ingest", outcome)

    def effect(self, kind: str, outcome: str) -> None:
        """`outcome`: done, pointless, retried or parked."""
        self._effects.labels(kind, outcome).inc()

    def dispatch_latency(self, seconds: float) -> None:
        self._latency.observe(max(0.0, seconds))

    def live_delay(self, seconds: float) -> None:
        self._live_delay.observe(seconds)

    def replica_lag(self, seconds: float | None) -> None:
        """`seconds` that the replica which pages read is behind; None when that is not known yet."""
        self.replica_lag_s = seconds

    def live_streams(self, number: int) -> None:
        self._streams.set(number)

    def page_answered(self, source: str) -> None:
        """`source`: kept, rendering, or shared_rendering."""
        self._pages.labels(source).inc()

    def page_refused(self) -> None:
        self._pages_refused.inc()

    def pages_waiting(self, number: int) -> None:
        self._pages_waiting.set(number)

    def keys_read(self, outcome: str) -> None:
        """`outcome`: read or failed."""
        self._key_reads.labels(outcome).inc()

    def limiter(self, *, answered: bool) -> None:
        self._limiter_up.set(int(answered))
        if not answered:
            self._limiter_faults.inc()

    def accepts_requests(self) -> None:
        """Called by a process that accepts requests, never by one that only runs a worker."""
        self._doors.set(1)

    def leads(self, leading: bool) -> None:  # noqa: FBT001  called with the new state
        self._leader.set(int(leading))

    def worker_seen(self) -> None:
        """Called in each cycle of the worker's loop."""
        self._worker.labels("outbox").set(self._now_s())

    def observe(self, vitals: list[Vitals] | None) -> None:
        """Export the store's figures at a scrape; None when it did not answer: old ones are dropped."""
        self._queues.observe(vitals)

    def text(self) -> bytes:
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of this process, with the samples of its page process."""
        return self.pages.merge_into(self.registry.collect())

    def samples(self) -> bytes:
        """Return what a page process sends to the process that is scraped."""
        return page_samples(self.registry.collect())

    def _refused(self, door: str, outcome: str) -> None:
        layer = refusal_layer(outcome)
        if layer is not None:
            self._refusals.labels(door, layer).inc()

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"crcr_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"crcr_{name}", about, registry=self.registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"crcr_{name}", about, buckets=_LATENCIES_S, registry=self.registry)


class _ReplicaLag(Collector):
    """Without a replica nothing is exported."""

    def __init__(self, metrics: RelayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "crcr_hud_replica_lag_seconds", "How far the replica that pages read is behind"
        )
        if self._metrics.replica_lag_s is not None:
            lag.add_metric([], self._metrics.replica_lag_s)
        yield lag


_STATES = ("waiting", "claimed", "parked")
_HEALTH = {HealthState.GREEN: 0, HealthState.AMBER: 1, HealthState.RED: 2}


class QueueMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._up = Gauge("crcr_store_up", "Whether the store answered", registry=registry)
        self._waiting = self._gauge("effects_waiting", "Effects not done yet")
        self._parked = self._gauge("effects_parked", "Undelivered effects")
        self._lag = self._gauge("outbox_lag_seconds", "Age of the oldest due effect")
        self._queue = self._gauge("queue_effects", "Unfinished effects by kind", "kind", "state")
        self._queue_lag = self._gauge("queue_lag_seconds", "Age of the oldest due effect of a kind", "kind")
        self._allowlist = self._gauge("allowlist_in_force", "Whether an allowlist is in force")
        self._bad = self._gauge("allowlist_bad", "Whether the newest allowlist has errors")
        self._health = self._gauge("health", "Health: 0 green, 1 amber, 2 red")
        self._paused = self._gauge("upstream_paused", "Whether dispatching is paused")
        self._silence = self._gauge("last_delivery_age_seconds", "Age of the newest recorded webhook")
        self._unfed = self._gauge("history_unfed", "Results not yet in ClickHouse")
        self._history = self._gauge("history_lag_seconds", "Age of the oldest result due in ClickHouse")
        self._gates = self._gauge("open_gates", "Heads of open pull requests by gate state", "state")
        self._contradicted = self._gauge(
            "verdicts_contradicted", "Verdicts that people contradicted in the last 30 days"
        )
        self._overdue = self._gauge("gate_overdue_seconds", "How long a gate has been due for re-evaluation")

    def observe(self, vitals: list[Vitals] | None) -> None:
        """Export the store's figures; None when it did not answer."""
        self._up.set(0 if vitals is None else 1)
        for gauge in self._gauges:
            gauge.clear()
        for vital in vitals or ():
            self._set_gauges(vital.upstream.full_name, vital)

    def _set_gauges(self, name: str, vitals: Vitals) -> None:
        self._waiting.labels(name).set(vitals.waiting)
        self._parked.labels(name).set(vitals.parked)
        self._lag.labels(name).set(vitals.lag_s or 0.0)
        self._allowlist.labels(name).set(int(vitals.has_allowlist))
        self._bad.labels(name).set(int(vitals.watched.allowlist_bad))
        if vitals.health is not None:
            self._health.labels(name).set(_HEALTH[vitals.health.state])
        self._paused.labels(name).set(int(vitals.watched.paused))
        self._contradicted.labels(name).set(vitals.contradicted)
        self._overdue.labels(name).set(vitals.watched.gate_overdue_s)
        if vitals.watched.last_delivery_s is not None:
            self._silence.labels(name).set(vitals.watched.last_delivery_s)
        if vitals.history_lag_s is not None:
            self._unfed.labels(name).set(vitals.history_unfed)
            self._history.labels(name).set(vitals.history_lag_s)
        gates = dict(vitals.open_gates)
        for state in GateState:
            self._gates.labels(name, state.value).set(gates.get(state.value, 0))
        self._set_queues(name, {queue.kind: queue for queue in vitals.queues})

    def _set_queues(self, name: str, queues: dict[str, EffectQueue]) -> None:
        """Export every kind, also without effects: a series that comes and goes breaks alerts on it."""
        for kind in EffectKind:
            queue = queues.get(kind.value, EffectQueue(kind=kind.value))
            counts = (queue.waiting, queue.claimed, queue.parked)
            for state, number in zip(_STATES, counts, strict=True):
                self._queue.labels(name, kind.value, state).set(number)
            self._queue_lag.labels(name, kind.value).set(queue.lag_s or 0.0)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        gauge = Gauge(f"crcr_{name}", about, ["upstream", *labels], registry=self._registry)
        self._gauges.append(gauge)
        return gauge


LAYERS: dict[str, tuple[str, ...]] = {
    "body": (
        *("bad_request", "bad_report", "too_large", "method_not_allowed", "wrong_content_type"),
        # Answered before a request exists, so never counted for an intake.
        *("head_too_slow", "head_too_large", "target_too_long"),
    ),
    "signature": ("bad_signature",),
    "identity": ("not_authentic", "not_registered", "identity_changed", "claim_mismatch"),
    "keys": ("keys_unavailable",),
    "allowlist": ("not_allowlisted", "suspended", "no_allowlist", "default_branch_unknown"),
    "limiter": ("rate_limited", "limiter_unavailable"),
    "lifecycle": ("unknown_delivery", "no_in_progress", "conflicting_result", "wrong_event", "wrong_ref"),
    "separation": ("run_bound_elsewhere", "ambiguous_job"),
    "access": ("not_signed_in", "not_admin", "cross_origin", "stale_form"),
    "store": ("store_unavailable", "unavailable"),
    "relay": ("internal", "outside_fault", "stopping", "not_found", "not_possible"),
}

_LAYER_OF = {code: layer for layer, codes in LAYERS.items() for code in codes}


def refusal_layer(outcome: str) -> str | None:
    """Return the layer of an error code; None if the outcome is not a refusal."""
    return _LAYER_OF.get(outcome)
