"""What a fleet of upstreams asks of the relay: its traffic in the busiest hour, and what it leaves on disk.

Rates are those of the busiest hour. A *head* is a commit that is dispatched: a pull request's first commit, a further
push, or a merge group.
"""

from dataclasses import dataclass

from bench.model.constants import HeadCalls
from crcr.demo.history.backends import DAY_US, HOUR_US
from crcr.demo.history.events import busyness

HOURS_A_WEEK = 7 * 24
RENDERINGS_A_SECOND = 1.0
"""Of one page at most: a live reader takes a page that is a second old (ADR 31)."""
EVENTS_A_SECOND = 4.0
"""On one stream at most: changes that come together are one event."""


class BadWorkload(ValueError):
    """A workload that cannot exist."""


def generated_peak_factor() -> float:
    """The busiest hour of the generated history (`crcr demo --history`) over the mean hour of its week."""
    week = [busyness(hour * HOUR_US) for hour in range(HOURS_A_WEEK)]
    return max(week) / (sum(week) / (7 * DAY_US // HOUR_US))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One upstream's traffic, and how many such upstreams there are."""

    upstreams: int = 1
    downstreams: int = 20
    """Of each upstream."""
    prs_per_day: float = 100.0
    """New pull requests of one upstream."""
    pushes_per_pr: float = 2.0
    groups_per_pr: float = 0.5
    """Merge groups for each pull request."""
    dispatches_per_head: float = 1.2
    """Dispatches to each downstream: pull requests that are closed or labelled are dispatched too, and have no jobs."""
    other_webhooks_per_head: float = 4.0
    """Webhooks that are recorded without a dispatch: labels, edits, comments, ends of runs."""
    visible: int = 3
    """Of the downstreams, those with a check on each head: L4, and L3 with its label."""
    failing_share: float = 0.1
    """Of the heads, those that fail at one visible downstream."""
    jobs_per_dispatch: float = 2.0
    readers: int = 50
    """Live pages open at one upstream's dashboard."""
    pages: int = 10
    """Different pages among them."""
    views_per_reader: float = 10.0
    """Pages that a reader opens in an hour, besides refreshes."""
    refresh_s: float = 1.0
    """The shortest time between two refreshes of one live page."""
    peak_factor: float = 0.0
    """The busiest hour over the mean hour; 0 for the one of the generated history."""
    downstreams_per_installation: float = 1.0
    """How many of one upstream's downstreams share an installation of the App: those of one organisation."""
    followed: int = 1
    """How many of the upstreams each downstream is listed by."""
    keep_days: int = 400

    def __post_init__(self) -> None:
        for name in ("upstreams", "downstreams", "prs_per_day", "downstreams_per_installation", "followed"):
            if getattr(self, name) <= 0:
                raise BadWorkload(f"--{name.replace('_', '-')} must be more than 0")
        for name in ("pushes_per_pr", "groups_per_pr", "visible", "readers", "pages", "jobs_per_dispatch"):
            if getattr(self, name) < 0:
                raise BadWorkload(f"--{name.replace('_', '-')} must not be negative")
        if self.visible > self.downstreams:
            raise BadWorkload(f"--visible {self.visible} is more than the {self.downstreams} downstreams")
        if not 0 <= self.failing_share <= 1:
            raise BadWorkload("--failing-share must be between 0 and 1")
        if self.followed > self.upstreams:
            raise BadWorkload(f"--followed {self.followed} is more than the {self.upstreams} upstreams")

    @property
    def peak(self) -> float:
        return self.peak_factor or generated_peak_factor()

    @property
    def heads_per_day(self) -> float:
        """Of one upstream."""
        return self.prs_per_day * (1 + self.pushes_per_pr + self.groups_per_pr)

    @property
    def heads_per_hour(self) -> float:
        """Of one upstream, in its busiest hour."""
        return self.heads_per_day / 24 * self.peak

    @property
    def installations(self) -> float:
        """Installations of the App over all upstreams: theirs, and those of their downstreams."""
        downstreams = self.upstreams * self.downstreams / self.followed
        return self.upstreams + downstreams / self.downstreams_per_installation


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Facts each second in the busiest hour, over all upstreams."""

    heads: float
    other_webhooks: float
    dispatches: float
    callbacks: float
    check_calls: float
    page_requests: float
    """Refreshes of live pages and opened pages."""
    renderings: float
    """Of these, the ones that are rendered anew; the others are kept."""
    stream_events: float

    @property
    def webhooks(self) -> float:
        return self.heads + self.other_webhooks


def calls_per_head(workload: Workload, calls: HeadCalls) -> float:
    """Calls on the upstream's installation for each head."""
    failing = workload.failing_share if workload.visible else 0.0
    return calls.gate + workload.visible * calls.backend + failing * calls.failing_backend


def points_per_head(workload: Workload, calls: HeadCalls) -> float:
    """Points on the upstream's installation for each head: 1 for a read, 5 for a write."""
    failing = workload.failing_share if workload.visible else 0.0
    writes = (
        calls.gate_writes + workload.visible * calls.backend_writes + failing * calls.failing_backend_writes
    )
    return calls_per_head(workload, calls) + 4 * writes


def demand_of(workload: Workload, calls: HeadCalls) -> Demand:
    heads = workload.upstreams * workload.heads_per_hour / 3600
    dispatches = heads * workload.downstreams * workload.dispatches_per_head
    callbacks = heads * workload.downstreams * workload.jobs_per_dispatch * 2
    changes = (callbacks + 2 * dispatches + heads) / workload.upstreams
    refreshes = workload.readers * min(changes, 1 / workload.refresh_s)
    views = workload.readers * workload.views_per_reader / 3600
    pages = min(workload.pages, workload.readers)
    renderings = min(pages * min(changes, RENDERINGS_A_SECOND), refreshes + views)
    return Demand(
        heads=heads,
        other_webhooks=heads * workload.other_webhooks_per_head,
        dispatches=dispatches,
        callbacks=callbacks,
        check_calls=heads * calls_per_head(workload, calls),
        page_requests=workload.upstreams * (refreshes + views),
        renderings=workload.upstreams * renderings,
        stream_events=workload.upstreams * workload.readers * min(changes, EVENTS_A_SECOND),
    )
