"""Metrics about GitHub: calls by kind, pauses, and the requests left in the hour.

There are as many hourly budgets as installations, which is not a closed set: the lowest is exported, and counts by state.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crcr.decide.github.requests_and_answers import Budget, CallKind, Urgency
from crcr.errors import HeldBy

PAUSES = (HeldBy.HOUR, HeldBy.MINUTE, HeldBy.CONTENT, HeldBy.SECONDARY, "concurrent")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_STANDINGS = {"low": 0.2, "half": 0.5}
"""Up to which share of the hour a budget stands so; what is low is kept for the most urgent calls."""


class GitHubMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("crcr_github_calls", "Calls to GitHub", ["call", "status"], registry=registry)
        self._seconds = Histogram(
            "crcr_github_call_seconds",
            "How long GitHub took to answer",
            ["call"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._pauses = Counter(
            "crcr_github_pauses",
            "Calls that were put off by a limit",
            ["reason", "urgency"],
            registry=registry,
        )
        for reason in PAUSES:
            for urgency in Urgency:
                self._pauses.labels(reason, _word(urgency))
        self._budgets = _Budgets()
        registry.register(self._budgets)

    def call(self, kind: CallKind, status: str, seconds: float) -> None:
        """`status`: 2xx to 5xx, other, unsure or unreachable."""
        self._calls.labels(kind.value, status).inc()
        self._seconds.labels(kind.value).observe(seconds)

    def pause(self, reason: str, urgency: Urgency) -> None:
        """`reason`: the limit that it waits for; concurrent where too many requests were under way at once."""
        self._pauses.labels(reason, _word(urgency)).inc()

    def watch(self, budgets: Callable[[], Iterable[Budget]]) -> None:
        """Say where the budgets are asked for at a scrape."""
        self._budgets.ask = budgets


class _Budgets(Collector):
    """What is left of the hour; nothing is said before GitHub has said it."""

    def __init__(self) -> None:
        self.ask: Callable[[], Iterable[Budget]] = tuple

    def collect(self) -> Iterator[Metric]:
        budgets = list(self.ask())
        left = [each.remaining for each in budgets if each.remaining is not None]
        shares = [share for each in budgets if (share := _share(each)) is not None]
        yield _lowest("crcr_github_least_remaining", "Requests left this hour where fewest are", left)
        yield _lowest("crcr_github_least_remaining_ratio", "The same as a part of the hour's limit", shares)
        standing = GaugeMetricFamily(
            "crcr_github_budgets", "Hourly budgets by how they stand", labels=["standing"]
        )
        counted = [_standing(each) for each in budgets]
        for name in (*_STANDINGS, "ample", "blocked"):
            standing.add_metric([name], counted.count(name))
        yield standing
        held = GaugeMetricFamily(
            "crcr_github_held_back", "Hourly budgets that hold back calls of a class", labels=["urgency"]
        )
        for urgency in Urgency:
            held.add_metric([_word(urgency)], sum(urgency in each.held for each in budgets))
        yield held


def _word(urgency: Urgency) -> str:
    return urgency.name.lower()


def _share(budget: Budget) -> float | None:
    if budget.remaining is None or not budget.limit:
        return None
    return max(0, budget.remaining) / budget.limit


def _standing(budget: Budget) -> str:
    if budget.blocked:
        return "blocked"
    share = _share(budget)
    return next((name for name, upto in _STANDINGS.items() if share is not None and share < upto), "ample")


def _lowest(name: str, about: str, values: list[int] | list[float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about)
    if values:
        family.add_metric([], max(0, min(values)))
    return family
