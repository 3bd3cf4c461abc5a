"""Which webhooks of GitHub's delivery log are missing in the store, and the order in which they are recovered.

Pull requests come newest first: by the ordering rule the newest state of each is processed and the older ones are
recorded as superseded, so that a backlog collapses instead of dispatching every stale head. Installation events come
first of all, because they say where the App is installed; everything else follows in chronological order. In-tree checks, of
which an hour has thousands, come last, the newest first and only so many: each costs a call.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter

from crcr.decide.events import USED_ACTIONS
from crcr.decide.github.requests_and_answers import LoggedDelivery

LOG_KEPT = timedelta(days=3)
"""How long github.com keeps its delivery log; GitHub Enterprise Server keeps it longer, which is not needed."""
OVERLAP = timedelta(minutes=15)
"""How far before the watermark the log is read again: entries appear late, and clocks differ."""

_PULL_REQUEST = "pull_request"
_REPOSITORY_EVENTS = frozenset({"installation", "installation_repositories", "repository"})
_UPSTREAM_EVENTS = frozenset(
    {_PULL_REQUEST, "push", "merge_group", "check_run", "check_suite", "status", "issue_comment"}
)
_WITHOUT_ACTION = frozenset({"push", "status"})
_IN_TREE = frozenset({("check_run", "created"), ("check_run", "completed"), ("status", None)})
MOST_IN_TREE = 1_000
"""How many missed in-tree checks one run recovers."""

_chronological = attrgetter("first_at", "first_id")


class RecoveryOutcome(StrEnum):
    """The outcome of processing a recovered webhook."""

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
    is_in_tree: bool = False


@dataclass(frozen=True, slots=True)
class KnownWebhooks:
    """GUIDs that are in the store."""

    taken: frozenset[str] = frozenset()
    """Those in the inbox."""
    recovered: frozenset[str] = frozenset()
    """Those that were recovered from the log before, whatever their outcome."""


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
    """How many of the processed ones were older than the known state."""
    repeated: int = 0
    ignored: int = 0
    unusable: int = 0
    left: int = 0
    stopped: str | None = None
    """Why it ended early; the next run continues from there."""


def is_used_event(entry: LoggedDelivery) -> bool:
    """Whether the relay handles such an event; if not, its payload is not read."""
    if entry.event in _WITHOUT_ACTION:
        return True
    return entry.action in USED_ACTIONS.get(entry.event, ())


def read_since(now: datetime, watermark: datetime | None) -> datetime:
    oldest = now - LOG_KEPT
    return oldest if watermark is None else max(watermark - OVERLAP, oldest)


def group_attempts(entries: Iterable[LoggedDelivery]) -> list[LoggedWebhook]:
    """Merge the attempts of each GUID, in any order."""
    attempts: dict[str, list[LoggedDelivery]] = {}
    for entry in entries:
        attempts.setdefault(entry.guid, []).append(entry)
    return [_merge_attempts(same) for same in attempts.values()]


def _merge_attempts(attempts: Sequence[LoggedDelivery]) -> LoggedWebhook:
    first = min(attempts, key=attrgetter("delivered_at", "log_id"))
    return LoggedWebhook(
        guid=first.guid,
        event=first.event,
        repository_id=first.repository_id,
        acknowledged=any(attempt.ok for attempt in attempts),
        first_at=first.delivered_at,
        first_id=first.log_id,
        log_id=max(attempts, key=attrgetter("delivered_at", "log_id")).log_id,
        is_in_tree=(first.event, first.action) in _IN_TREE,
    )


def possibly_missing(
    logged: Iterable[LoggedWebhook], upstream_ids: frozenset[int] | None
) -> list[LoggedWebhook]:
    """Return the webhooks to look up in the store. Without `upstream_ids` any repository may be an upstream."""
    return [
        delivery for delivery in logged if _may_be_missing(delivery) and _may_be_ours(delivery, upstream_ids)
    ]


def _may_be_missing(webhook: LoggedWebhook) -> bool:
    # Acknowledged webhooks are durable, unless the database was restored from an older copy. Only pull request
    # events are recorded without exception, so only their absence shows that.
    return not webhook.acknowledged or webhook.event == _PULL_REQUEST


def _may_be_ours(webhook: LoggedWebhook, upstream_ids: frozenset[int] | None) -> bool:
    if webhook.event not in _UPSTREAM_EVENTS or upstream_ids is None or webhook.repository_id is None:
        return True
    return webhook.repository_id in upstream_ids


def missing_webhooks(logged: Iterable[LoggedWebhook], known: KnownWebhooks) -> list[LoggedWebhook]:
    """Return the webhooks to recover, in the order of processing."""
    stored = known.taken | known.recovered
    unknown = [delivery for delivery in logged if delivery.guid not in stored]
    repositories = [delivery for delivery in unknown if delivery.event in _REPOSITORY_EVENTS]
    pulls = [delivery for delivery in unknown if delivery.event == _PULL_REQUEST]
    in_tree = [delivery for delivery in unknown if delivery.is_in_tree]
    others = [
        delivery
        for delivery in unknown
        if not delivery.is_in_tree and delivery.event not in _REPOSITORY_EVENTS | {_PULL_REQUEST}
    ]
    return [
        *sorted(repositories, key=_chronological),
        *sorted(pulls, key=_chronological, reverse=True),
        *sorted(others, key=_chronological),
        *sorted(in_tree, key=_chronological, reverse=True)[:MOST_IN_TREE],
    ]
