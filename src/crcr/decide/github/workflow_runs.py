"""Workflow runs and jobs on GitHub Actions: how their fields are read, and when a dispatch's runs are looked up.

GitHub has conclusions that a report cannot have: each maps to the nearest one of ours, and an unknown one counts as a
failure, so that nothing passes by being unknown. One look-up covers all runs and jobs of a dispatch. Where
`workflow_run` webhooks arrive, GitHub is hardly ever polled.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.model import Conclusion, RepoName

_CONCLUSIONS = {known.value: known for known in Conclusion if known is not Conclusion.NONE} | {
    "startup_failure": Conclusion.FAILURE,
    "stale": Conclusion.CANCELLED,
}
# GitHub adds the ref to the path of some runs (`.github/workflows/ci.yml@main`); ours are compared without it.
_PATH_WITH_REF = re.compile(r"(?P<path>.*?\.ya?ml)@.*", re.DOTALL)
_CHECK_RUN_URL = re.compile(r".*/check-runs/([0-9]{1,20})/?", re.DOTALL)
_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_NAMED = 20
_MOST_TITLE = 4_096
"""How many characters of a run's name are searched."""


def parse_conclusion(word: str | None) -> Conclusion | None:
    return None if word is None else _CONCLUSIONS.get(word, Conclusion.FAILURE)


def path_without_ref(path: str) -> str:
    match = _PATH_WITH_REF.fullmatch(path)
    return match["path"] if match else path


def parse_check_run_id(url: str | None) -> str | None:
    """Return the id at the end of a job's `check_run_url`, which its token signs."""
    match = _CHECK_RUN_URL.fullmatch(url or "")
    return match[1] if match else None


def delivery_ids_in(display_title: str) -> tuple[str, ...]:
    """Return the GUIDs in a run's name, up to a limit."""
    title = display_title[:_MOST_TITLE]
    return tuple(dict.fromkeys(guid.lower() for guid in _GUID.findall(title)))[:_MOST_NAMED]


def other_delivery_named(display_title: str, claimed: str, sent: Collection[str]) -> str | None:
    """Return the delivery that a run's name contains instead of the claimed one: the only one sent to its repository.

    None where the name contains the claimed one as well: other text in the name may come from anybody.
    """
    if claimed.lower() in display_title.lower():
        return None
    named = {guid for guid in delivery_ids_in(display_title) if guid in sent}
    return named.pop() if len(named) == 1 else None


_SOONEST = timedelta(seconds=15)
_LATEST = timedelta(minutes=10)
_STEPS = (timedelta(seconds=5), timedelta(seconds=15), timedelta(seconds=30), timedelta(minutes=1))
"""Delays of repeated look-ups while the gate waits; a report is sent from inside a job that ends a little later."""
FAST_PHASE = _STEPS[-1]
FIRST_TOGETHER, TOGETHER = timedelta(minutes=1), timedelta(minutes=5)
"""How long results are gathered while a job of their dispatch runs, before the first list and after each: the gate cannot
pass before that job ends, and its own report queues a look-up at once. Only a dispute, or the end of a run whose last
report was lost, appears that much later where no webhook arrives."""
_WEBHOOKS_LATELY = timedelta(hours=24)
"""A repository that sent a `workflow_run` webhook within this time is expected to send the next one too."""
SETTLING = timedelta(seconds=20)
"""Delay of the look-up of a result that no gate waits for."""
WEBHOOK_GRACE = timedelta(minutes=1)
"""Delay after which a result is looked up although a webhook is expected at the end of its run."""


class RemainingLookup(StrEnum):
    """What is still to be looked up for a dispatch."""

    NOTHING = "nothing"
    UNTIL_REPORT = "until report"
    """A result is unconfirmed, and a known job is running, whose report or time-out queues the next look-up."""
    UNCONFIRMED = "unconfirmed"
    QUIET_TIME = "quiet time"
    """Everything is confirmed and over; another run may still appear until the quiet time has passed."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    run_id: int
    is_over: bool
    unchecked_attempts: tuple[int, ...]
    """Attempts with jobs that have not been compared with GitHub's view."""
    first_seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLookup:
    upstream: RepoName
    delivery: str
    downstream: RepoName
    """Its current name, used for requests to GitHub."""
    dispatched_as: RepoName | None = None
    """The name in the dispatch's record, if it differs."""
    repository_id: int | None
    installation_id: int | None
    sent_at: datetime
    runs: tuple[KnownRun, ...]
    wants_list: bool
    """Whether runs must be listed: unknown ones may answer the delivery."""
    gates: bool = False
    """Whether the gate waits for the answer."""
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
    """Return the delay until the next look-up: seconds for the gate, then a minute; in the end less and less often."""
    if not gates:
        return min(max(_SOONEST, waited / 6), _LATEST)
    if webhooks:
        return WEBHOOK_GRACE if waited < WEBHOOK_GRACE else _LATEST
    for step in _STEPS:
        if waited + timedelta(seconds=1) < step:
            return step - waited
    return min(max(timedelta(minutes=1), waited / 60), _LATEST)
