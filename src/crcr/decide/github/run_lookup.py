"""A question to GitHub's Actions about one dispatch, and how long to wait before it is asked again.

One question serves all runs and jobs of the dispatch. Where webhooks about runs arrive, GitHub is hardly ever asked.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.model import RepoName

_SOONEST = timedelta(seconds=15)
_LATEST = timedelta(minutes=10)
_STEPS = (timedelta(seconds=5), timedelta(seconds=15), timedelta(seconds=30), timedelta(minutes=1))
"""After so long it is asked again while the gate waits; a report is sent from inside a job that ends a little later."""
FAST_PHASE = _STEPS[-1]
FIRST_TOGETHER, TOGETHER = timedelta(minutes=1), timedelta(minutes=5)
"""So long results wait for each other while a job of their dispatch runs, before the first list and after each: the gate
cannot pass before that job ends, and its own report asks at once. Only a dispute, or the end of a run whose last report
was lost, shows so much later where no webhook tells of it."""
_WEBHOOKS_LATELY = timedelta(hours=24)
"""A repository with a webhook about a run within this time will have one about the next run as well."""
SETTLING = timedelta(seconds=20)
"""When a result that no gate waits for is looked up."""
WEBHOOK_GRACE = timedelta(minutes=1)
"""When a result is looked up although a webhook should have arrived when its run ended."""


class RemainingLookup(StrEnum):
    """What is left to be asked about a dispatch."""

    NOTHING = "nothing"
    UNTIL_REPORT = "until report"
    """Something is unconfirmed, and a known job is running, whose report or silence asks again."""
    UNCONFIRMED = "unconfirmed"
    QUIET_TIME = "quiet time"
    """All is confirmed and over; whether another run appears is known only when no more can."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    run_id: int
    is_over: bool
    unchecked_attempts: tuple[int, ...]
    """Attempts with jobs that nobody has held against GitHub's view."""
    first_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLookup:
    upstream: RepoName
    delivery: str
    downstream: RepoName
    """Its present name, under which GitHub is asked."""
    dispatched_as: RepoName | None = None
    """The name that the dispatch is recorded under, if it is known to differ."""
    repository_id: int | None
    installation_id: int | None
    sent_at: datetime
    runs: tuple[KnownRun, ...]
    wants_list: bool
    """Other runs than the known ones may answer the delivery."""
    gates: bool = False
    """The gate waits for the answer."""
    run_webhook_at: datetime | None = None
    """When the last webhook about a run of this repository arrived."""

    @property
    def key(self) -> dict[str, str]:
        return {
            "upstream": self.upstream.key,
            "delivery": self.delivery,
            "downstream": (self.dispatched_as or self.downstream).key,
        }


def has_run_webhooks(run_webhook_at: datetime | None, now: datetime) -> bool:
    """Whether webhooks about this repository's runs arrive, so that GitHub need not be polled."""
    return run_webhook_at is not None and now - run_webhook_at < _WEBHOOKS_LATELY


def next_lookup_delay(waited: timedelta, *, gates: bool, webhooks: bool) -> timedelta:
    """How long to wait: for the gate a few seconds, then a minute; in the end less and less often."""
    if not gates:
        return min(max(_SOONEST, waited / 6), _LATEST)
    if webhooks:
        return WEBHOOK_GRACE if waited < WEBHOOK_GRACE else _LATEST
    for step in _STEPS:
        if waited + timedelta(seconds=1) < step:
            return step - waited
    return min(max(timedelta(minutes=1), waited / 60), _LATEST)
