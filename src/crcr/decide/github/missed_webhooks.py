"""Which webhooks of GitHub's delivery log are missing here, and in which order they are taken up.

Pull requests come newest first: under the ordering rule the newest state of each is taken and the older ones are
recorded as superseded, so a backlog collapses instead of dispatching every stale head. Installations come before
all others, because they tell where the App is; everything else follows in the order it happened.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter

from crcr.decide.events import USED_ACTIONS
from crcr.decide.github.values import LoggedDelivery

LOG_KEPT = timedelta(days=3)
"""How long GitHub keeps its log; a server of its own keeps it for longer, which we do not need."""
OVERLAP = timedelta(minutes=15)
"""How far behind the watermark is read again: a line appears late, and clocks differ."""

_PULL_REQUEST = "pull_request"
_REPOSITORY_EVENTS = frozenset({"installation", "installation_repositories", "repository"})
_UPSTREAM_EVENTS = frozenset(
    {_PULL_REQUEST, "push", "merge_group", "check_run", "check_suite", "issue_comment"}
)
_WITHOUT_ACTION = frozenset({"push"})

_chronological = attrgetter("first_at", "first_id")


class RecoveryOutcome(StrEnum):
    """What became of a webhook that was taken up."""

    TAKEN = "taken"
    REPEAT = "repeat"
    IGNORED = "ignored"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedWebhook:
    """All attempts of one webhook. The payload is read from the newest, which GitHub keeps the longest."""

    guid: str
    event: str
    repository_id: int | None
    acknowledged: bool
    """Whether any attempt was answered with a 2xx."""
    first_at: datetime
    first_id: int
    log_id: int


@dataclass(frozen=True, slots=True)
class KnownWebhooks:
    """GUIDs that the store knows."""

    taken: frozenset[str] = frozenset()
    """Those that stand in the inbox."""
    recovered: frozenset[str] = frozenset()
    """Those that were taken up from the log before, whatever became of them."""


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    stage: str
    done: int
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    since: datetime | None = None
    logged: int = 0
    missed: int = 0
    taken: int = 0
    superseded: int = 0
    """How many of the taken ones were older than what is known."""
    repeated: int = 0
    ignored: int = 0
    unusable: int = 0
    left: int = 0
    stopped: str | None = None
    """Why it ended early; the next run goes on from there."""


def is_used_event(entry: LoggedDelivery) -> bool:
    """Whether the relay does anything with such an event; if not, it is not worth a call."""
    if entry.event in _WITHOUT_ACTION:
        return True
    return entry.action in USED_ACTIONS.get(entry.event, ())


def read_since(now: datetime, watermark: datetime | None) -> datetime:
    oldest = now - LOG_KEPT
    return oldest if watermark is None else max(watermark - OVERLAP, oldest)


def group_attempts(entries: Iterable[LoggedDelivery]) -> list[LoggedWebhook]:
    """Gather the attempts of each GUID, in any order."""
    attempts: dict[str, list[LoggedDelivery]] = {}
    for entry in entries:
        attempts.setdefault(entry.guid, []).append(entry)
    return [_merge_attempts(each) for each in attempts.values()]


def _merge_attempts(attempts: Sequence[LoggedDelivery]) -> LoggedWebhook:
    first = min(attempts, key=attrgetter("delivered_at", "log_id"))
    return LoggedWebhook(
        guid=first.guid,
        event=first.event,
        repository_id=first.repository_id,
        acknowledged=any(each.ok for each in attempts),
        first_at=first.delivered_at,
        first_id=first.log_id,
        log_id=max(attempts, key=attrgetter("delivered_at", "log_id")).log_id,
    )


def possibly_missing(
    logged: Iterable[LoggedWebhook], upstream_ids: frozenset[int] | None
) -> list[LoggedWebhook]:
    """Those that may be missing; the store is asked about them. Without ids any repository may be an upstream."""
    return [each for each in logged if _may_be_missing(each) and _may_be_ours(each, upstream_ids)]


def _may_be_missing(webhook: LoggedWebhook) -> bool:
    # What was acknowledged is durable, unless the database was restored from an older copy. Of all events only
    # those of pull requests are recorded without exception, so only their absence says that.
    return not webhook.acknowledged or webhook.event == _PULL_REQUEST


def _may_be_ours(webhook: LoggedWebhook, upstream_ids: frozenset[int] | None) -> bool:
    if webhook.event not in _UPSTREAM_EVENTS or upstream_ids is None or webhook.repository_id is None:
        return True
    return webhook.repository_id in upstream_ids


def missing_webhooks(logged: Iterable[LoggedWebhook], known: KnownWebhooks) -> list[LoggedWebhook]:
    """Those to take up, in the order to do it."""
    here = known.taken | known.recovered
    unknown = [each for each in logged if each.guid not in here]
    places = [each for each in unknown if each.event in _REPOSITORY_EVENTS]
    pulls = [each for each in unknown if each.event == _PULL_REQUEST]
    others = [each for each in unknown if each.event not in _REPOSITORY_EVENTS | {_PULL_REQUEST}]
    return [
        *sorted(places, key=_chronological),
        *sorted(pulls, key=_chronological, reverse=True),
        *sorted(others, key=_chronological),
    ]
