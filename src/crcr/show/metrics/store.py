"""Metrics about the store: commit times, units per commit, connection pools, disk space."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_UNITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class StoreMetrics:
    """Implements `record.store.database.StoreCounters`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "crcr_store_write_seconds",
            "Duration of a commit",
            buckets=_SECONDS,
            registry=registry,
        )
        self._units = Histogram(
            "crcr_store_group_units",
            "Units of work per commit",
            buckets=_UNITS,
            registry=registry,
        )
        self._faults = Counter("crcr_store_faults", "Writes that the store refused", registry=registry)
        self._readings = _Readings()
        registry.register(self._readings)

    def committed(self, units: int, seconds: float) -> None:
        self._units.observe(units)
        self._seconds.observe(seconds)

    def failed(self) -> None:
        self._faults.inc()

    def connections(self, *, pool: str, used: int, most: int) -> None:
        """`pool`: writing or reading."""
        self._readings.connections[pool] = used, most

    def watch_disk(self, folder: Path) -> None:
        """Export the disk space of the folder of the SQLite file."""
        self._readings.folder = folder


class _Readings(Collector):
    """Gauges that are read at a scrape; those that do not apply or cannot be read are left out."""

    def __init__(self) -> None:
        self.connections: dict[str, tuple[int, int]] = {}
        self.folder: Path | None = None

    def collect(self) -> Iterator[Metric]:
        yield from self._pools()
        free, size = self._disk()
        yield _gauge("crcr_disk_free_bytes", "Free space on the file system of the store", free)
        yield _gauge("crcr_disk_size_bytes", "Size of the file system of the store", size)

    def _pools(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("crcr_store_connections_used", "Connections in use", labels=["pool"])
        most = GaugeMetricFamily(
            "crcr_store_connections_most", "Maximum number of connections", labels=["pool"]
        )
        for pool, (now, limit) in self.connections.items():
            used.add_metric([pool], now)
            most.add_metric([pool], limit)
        yield from (used, most)

    def _disk(self) -> tuple[int | None, int | None]:
        if self.folder is None:
            return None, None
        try:
            usage = shutil.disk_usage(self.folder)
        except OSError:
            return None, None
        return usage.free, usage.total


def _gauge(name: str, about: str, value: int | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about)
    if value is not None:
        family.add_metric([], value)
    return family
