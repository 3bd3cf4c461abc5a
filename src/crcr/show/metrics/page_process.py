"""Metrics of the page process: it sends its samples, and the process that is scraped adds them to its own.

Counters and histograms of both processes are added up. Of the gauges, only those that the page process alone sets are taken
from it. What a page process had counted when it ended stays counted: a sum that falls would look like a restart of all.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_ADDED = ("counter", "histogram")
_PAGE_GAUGES = ("crcr_live_", "crcr_pages_", "crcr_hud_")
_OURS = "crcr_page_process_"

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""
_Samples = list[tuple[str, dict[str, str], float]]


class PageProcessMetrics(Collector):
    """The samples of the page process; without one, nothing is added."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._added: dict[Key, float] = {}
        self._gauges: dict[Key, float] = {}
        self._ended: dict[Key, float] = {}
        """Counts of the page processes that have ended."""
        self._is_up: bool | None = None
        self._restarts = 0
        self.request: Callable[[], Awaitable[None]] | None = None
        """Requests fresh samples, and waits for them for a short time."""
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            f"{_OURS}up", "Whether the page process that this process started serves pages"
        )
        restarts = CounterMetricFamily(f"{_OURS}restarts", "Page processes that ended by themselves")
        if self._is_up is not None:
            up.add_metric([], int(self._is_up))
            restarts.add_metric([], self._restarts)
        yield from (up, restarts)

    def started(self) -> None:
        self._is_up = True

    def ended(self, *, by_itself: bool) -> None:
        self._is_up = False
        self._restarts += by_itself
        for key, value in self._added.items():
            self._ended[key] = self._ended.get(key, 0.0) + value
        self._added.clear()
        self._gauges.clear()

    def receive(self, samples: bytes) -> None:
        added, gauges = msgspec.json.decode(samples, type=tuple[_Samples, _Samples])
        self._added = {_key(name, labels): value for name, labels, value in added}
        self._gauges = {_key(name, labels): value for name, labels, value in gauges}

    def merge_into(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yield this process's families with the samples of the page process."""
        counts = dict(self._ended)
        for key, value in self._added.items():
            counts[key] = counts.get(key, 0.0) + value
        for family in families:
            if family.type in _ADDED:
                _update(family, counts, lambda ours, theirs: ours + theirs)
            elif _is_page_gauge(family.name):
                _update(family, self._gauges, lambda _, theirs: theirs)
            yield family


def page_samples(families: Iterable[Metric]) -> bytes:
    """Return the samples that the page process sends."""
    added: _Samples = []
    gauges: _Samples = []
    for family in families:
        if family.type in _ADDED:
            added += [(each.name, each.labels, each.value) for each in _counts(family)]
        elif _is_page_gauge(family.name):
            gauges += [(each.name, each.labels, each.value) for each in family.samples]
    return msgspec.json.encode((added, gauges))


def _is_page_gauge(name: str) -> bool:
    return name.startswith(_PAGE_GAUGES)


def _counts(family: Metric) -> Iterator[Sample]:
    if family.name.startswith(_OURS):
        return
    for sample in family.samples:
        if sample.value and not sample.name.endswith("_created"):
            yield sample


def _update(family: Metric, theirs: dict[Key, float], merge: Callable[[float, float], float]) -> None:
    names = {family.name, *(f"{family.name}_{part}" for part in ("total", "bucket", "count", "sum"))}
    rest = {key: value for key, value in theirs.items() if key[0] in names}
    samples = []
    for sample in family.samples:
        value = rest.pop(_key(sample.name, sample.labels), None)
        samples.append(sample if value is None else sample._replace(value=merge(sample.value, value)))
    samples += [Sample(name, dict(labels), value) for (name, labels), value in rest.items()]
    family.samples = samples


def _key(name: str, labels: dict[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))
