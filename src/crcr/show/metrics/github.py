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
_BUDGET_STATES = {"low": 0.2, "half": 0.5}
"""States of a budget by the share of the hour that is left; a low rest is reserved for the most urgent calls."""


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
            "Calls that a limit postponed",
            ["reason", "urgency"],
            registry=registry,
        )
        for reason in PAUSES:
            for urgency in Urgency:
                self._pauses.labels(reason, _urgency_word(urgency))
        self._budgets = _Budgets()
        registry.register(self._budgets)

    def call(self, kind: CallKind, status: str, seconds: float) -> None:
        """`status`: 2xx to 5xx, other, unsure or unreachable."""
        self._calls.labels(kind.value, status).inc()
        self._seconds.labels(kind.value).observe(seconds)

    def pause(self, reason: str, urgency: Urgency) -> None:
        """`reason`: the limit that the call waits for; `concurrent` when too many requests were in flight."""
        self._pauses.labels(reason, _urgency_word(urgency)).inc()

    def watch(self, budgets: Callable[[], Iterable[Budget]]) -> None:
        """Set the function that reads the budgets at a scrape."""
        self._budgets.read = budgets


class _Budgets(Collector):
    """The requests left in the hour; nothing is exported before GitHub reported it."""

    def __init__(self) -> None:
        self.read: Callable[[], Iterable[Budget]] = tuple

    def collect(self) -> Iterator[Metric]:
        budgets = list(self.read())
        remaining = [budget.remaining for budget in budgets if budget.remaining is not None]
        shares = [share for budget in budgets if (share := _share(budget)) is not None]
        yield _lowest(
            "crcr_github_least_remaining", "Requests left this hour, of the lowest budget", remaining
        )
        yield _lowest("crcr_github_least_remaining_ratio", "The same as a share of the hourly limit", shares)
        by_state = GaugeMetricFamily("crcr_github_budgets", "Hourly budgets by state", labels=["standing"])
        states = [_budget_state(budget) for budget in budgets]
        for name in (*_BUDGET_STATES, "ample", "blocked"):
            by_state.add_metric([name], states.count(name))
        yield by_state
        held = GaugeMetricFamily(
            "crcr_github_held_back", "Hourly budgets that hold back calls of a class", labels=["urgency"]
        )
        for urgency in Urgency:
            held.add_metric([_urgency_word(urgency)], sum(urgency in budget.held for budget in budgets))
        yield held


def _urgency_word(urgency: Urgency) -> str:
    return urgency.name.lower()


def _share(budget: Budget) -> float | None:
    if budget.remaining is None or not budget.limit:
        return None
    return max(0, budget.remaining) / budget.limit


def _budget_state(budget: Budget) -> str:
    if budget.blocked:
        return "blocked"
    share = _share(budget)
    return next(
        (name for name, upto in _BUDGET_STATES.items() if share is not None and share < upto), "ample"
    )


def _lowest(name: str, about: str, values: list[int] | list[float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about)
    if values:
        family.add_metric([], max(0, min(values)))
    return family
