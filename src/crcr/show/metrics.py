"""What the relay counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._deliveries = Counter(
            "crcr_deliveries", "Webhook deliveries", ["event", "outcome"], registry=self.registry
        )
        self._callbacks = Counter("crcr_callbacks", "Callbacks by outcome", ["outcome"], registry=self.registry)
        self._effects = Histogram(
            "crcr_effect_seconds", "Attempts at effects", ["kind", "outcome"], registry=self.registry
        )

    def delivery(self, event: str, outcome: str) -> None:
        self._deliveries.labels(event, outcome).inc()

    def callback(self, outcome: str) -> None:
        self._callbacks.labels(outcome).inc()

    def effect(self, kind: str, outcome: str, seconds: float) -> None:
        self._effects.labels(kind, outcome).observe(seconds)
