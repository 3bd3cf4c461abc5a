"""Numbers for Prometheus, in a registry of their own.

Other rooms count through these methods and know nothing of Prometheus. Labels come from closed sets, so that
no caller can make series without end.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from crcr.decide.gate import GateState
from crcr.decide.views import Vitals

_EVENTS = frozenset(
    {
        *("pull_request", "push", "merge_group", "check_run", "check_suite", "issue_comment", "ping"),
        *("workflow_run", "workflow_job", "installation", "installation_repositories", "repository"),
        *("pull_request_review", "nightly", "periodic"),
    }
)
_LATENCIES_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._deliveries = self._counter("deliveries", "Webhook deliveries", "event", "outcome")
        self._callbacks = self._counter("callbacks", "Callbacks by what was answered", "outcome")
        self._ingested = self._counter("ingested", "Results of other relays by what was answered", "outcome")
        self._by_outcome: dict[str, Counter] = {}  # the hot path need not look its label up
        self._effects = self._counter("effects", "Attempts at effects", "kind", "outcome")
        self._latency = Histogram(
            "crcr_dispatch_latency_seconds",
            "From a delivery's arrival to its dispatch being sent",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._live_delay = Histogram(
            "crcr_live_delay_seconds",
            "From a change being recorded to open pages being told",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._store_up = Gauge("crcr_store_up", "Whether the store answered", registry=self.registry)
        self._waiting = self._gauge("effects_waiting", "Effects not done yet")
        self._parked = self._gauge("effects_parked", "Effects that were given up")
        self._lag = self._gauge("outbox_lag_seconds", "Age of the oldest due effect")
        self._allowlist = self._gauge("allowlist_in_force", "Whether an allowlist is in force")
        self._gates = self._gauge("open_gates", "Heads of open pull requests by their gate", "state")

    def delivery(self, event: str, outcome: str) -> None:
        """`outcome`: taken, repeat, ignored, pong, or an error's code."""
        self._deliveries.labels(event if event in _EVENTS else "other", outcome).inc()

    def callback(self, outcome: str) -> None:
        """`outcome`: in_progress, completed, repeat, ignored, sandbox, or a refusal's code."""
        child = self._by_outcome.get(outcome)
        if child is None:
            child = self._by_outcome[outcome] = self._callbacks.labels(outcome)
        child.inc()

    def ingest(self, outcome: str) -> None:
        """`outcome`: in_progress, completed, repeat, or a refusal's code."""
        self._ingested.labels(outcome).inc()

    def effect(self, kind: str, outcome: str) -> None:
        """`outcome`: done, pointless, retried or parked."""
        self._effects.labels(kind, outcome).inc()

    def dispatch_latency(self, seconds: float) -> None:
        self._latency.observe(max(0.0, seconds))

    def live_delay(self, seconds: float) -> None:
        self._live_delay.observe(seconds)

    def observe(self, vitals: list[Vitals] | None) -> None:
        """Take the store's own figures at a scrape; None when it did not answer, and old ones are dropped."""
        self._store_up.set(0 if vitals is None else 1)
        for gauge in (self._waiting, self._parked, self._lag, self._allowlist, self._gates):
            gauge.clear()
        for each in vitals or ():
            name = each.upstream.full_name
            self._waiting.labels(name).set(each.waiting)
            self._parked.labels(name).set(each.parked)
            self._lag.labels(name).set(each.lag_s or 0.0)
            self._allowlist.labels(name).set(int(each.has_allowlist))
            standing = dict(each.open_gates)
            for state in GateState:
                self._gates.labels(name, state.value).set(standing.get(state.value, 0))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"crcr_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"crcr_{name}", about, ["upstream", *labels], registry=self.registry)
