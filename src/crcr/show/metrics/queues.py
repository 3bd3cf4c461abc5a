"""Gauges that are read from the store at a scrape: queues, gates, allowlists, and how far behind each is.

All of them go when the store does not answer: an old number would look like a fresh one.
"""

from prometheus_client import CollectorRegistry, Gauge

from crcr.decide.checks.gate import GateState
from crcr.decide.health.relay import HealthState
from crcr.decide.model import EffectKind
from crcr.decide.views.overview import EffectQueue, Vitals

_STATES = ("waiting", "claimed", "parked")
_HEALTH = {HealthState.GREEN: 0, HealthState.AMBER: 1, HealthState.RED: 2}


class QueueNumbers:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._up = Gauge("crcr_store_up", "Whether the store answered", registry=registry)
        self._waiting = self._gauge("effects_waiting", "Effects not done yet")
        self._parked = self._gauge("effects_parked", "Effects that were given up")
        self._lag = self._gauge("outbox_lag_seconds", "Age of the oldest due effect")
        self._queue = self._gauge("queue_effects", "Effects that are not over, by kind", "kind", "state")
        self._queue_lag = self._gauge("queue_lag_seconds", "Age of the oldest due effect of a kind", "kind")
        self._allowlist = self._gauge("allowlist_in_force", "Whether an allowlist is in force")
        self._bad = self._gauge("allowlist_bad", "Whether the newest allowlist has errors")
        self._health = self._gauge("health", "Health: 0 green, 1 amber, 2 red")
        self._paused = self._gauge("upstream_paused", "Whether dispatching is paused")
        self._silence = self._gauge("last_delivery_age_seconds", "Age of the newest recorded webhook")
        self._unfed = self._gauge("history_unfed", "Results that ClickHouse has not been told yet")
        self._history = self._gauge("history_lag_seconds", "Age of the oldest result due in ClickHouse")
        self._gates = self._gauge("open_gates", "Heads of open pull requests by their gate", "state")
        self._overdue = self._gauge("gate_overdue_seconds", "How long a gate has waited to be judged anew")

    def observe(self, vitals: list[Vitals] | None) -> None:
        """Take the store's figures; None when it did not answer."""
        self._up.set(0 if vitals is None else 1)
        for gauge in self._gauges:
            gauge.clear()
        for each in vitals or ():
            self._take(each.upstream.full_name, each)

    def _take(self, name: str, vitals: Vitals) -> None:
        self._waiting.labels(name).set(vitals.waiting)
        self._parked.labels(name).set(vitals.parked)
        self._lag.labels(name).set(vitals.lag_s or 0.0)
        self._allowlist.labels(name).set(int(vitals.has_allowlist))
        self._bad.labels(name).set(int(vitals.watched.allowlist_bad))
        if vitals.health is not None:
            self._health.labels(name).set(_HEALTH[vitals.health.state])
        self._paused.labels(name).set(int(vitals.watched.paused))
        self._overdue.labels(name).set(vitals.watched.gate_overdue_s)
        if vitals.watched.last_delivery_s is not None:
            self._silence.labels(name).set(vitals.watched.last_delivery_s)
        if vitals.history_lag_s is not None:
            self._unfed.labels(name).set(vitals.history_unfed)
            self._history.labels(name).set(vitals.history_lag_s)
        standing = dict(vitals.open_gates)
        for state in GateState:
            self._gates.labels(name, state.value).set(standing.get(state.value, 0))
        self._take_queues(name, {queue.kind: queue for queue in vitals.queues})

    def _take_queues(self, name: str, queues: dict[str, EffectQueue]) -> None:
        """Every kind is told, the empty ones too: a series that comes and goes breaks alerts on it."""
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
