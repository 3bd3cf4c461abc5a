"""Events that notify, the thread that each belongs to, and when a channel may send.

A thread is one subject: a backend that is red, a pull request that a backend blocks, an allowlist that cannot be read. An
event opens, updates or closes its thread, by a table; an event that changes nothing is not sent. Everything is a pure
function: the time and the channel's rules go in, the time of sending comes out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum

from crcr.decide.model import RepoName

RED_AFTER = 3
"""Failed results in a row on the base branch that make a job red."""
REFUSED_FOR = timedelta(hours=1)
"""For so long tokens must have been refused before anybody is told."""
REOPENED_WITHIN = timedelta(hours=24)
"""A subject that comes back within this time continues its thread."""
GATHERING = timedelta(minutes=1)
"""Events of so long are sent together: 40 backends that turn red at once are one notice."""
GATHERING_IN_PLACE = timedelta(seconds=5)
"""For issues and comments, which are updated in place and belong to one subject anyway."""
UNSENT_FOR = timedelta(days=7)
"""A notice that could not be sent for longer is dropped: it is no news any more."""
_LONGEST_SUMMARY = 300
_LONGEST_DETAIL = 300
_MOST_DETAILS = 20


class Topic(StrEnum):
    """What a thread is about; with the backend, pull request and item it is the thread's subject."""

    BASE = "base"
    SILENCE = "silence"
    LEVEL = "level"
    ELIGIBILITY = "eligibility"
    GATE = "gate"
    BISECTION = "bisection"
    SETUP = "setup"
    BREAKING = "breaking"
    """A change that a pull request announces to the backends that it concerns."""


class ThreadStep(StrEnum):
    """What an event does to its thread."""

    OPEN = "open"
    CLOSE = "close"
    REPORT = "report"
    """Says something once: the thread is closed at once."""


class NoticeKind(StrEnum):
    RED = "red"
    RECOVERED = "recovered"
    SILENT = "silent"
    REPORTING = "reporting"
    DEMOTED = "demoted"
    ALARMED = "alarmed"
    RESTORED = "restored"
    ELIGIBLE = "eligible"
    NOT_ELIGIBLE = "not_eligible"
    GATE_FAILED = "gate_failed"
    GATE_RESOLVED = "gate_resolved"
    BISECTED = "bisected"
    SETUP_BROKEN = "setup_broken"
    SETUP_REPAIRED = "setup_repaired"
    BREAKING = "breaking"
    BREAKING_ENDED = "breaking_ended"
    TEST = "test"
    """Sent by `crcr notices test`."""


KINDS: Mapping[NoticeKind, tuple[Topic, ThreadStep]] = {
    NoticeKind.RED: (Topic.BASE, ThreadStep.OPEN),
    NoticeKind.RECOVERED: (Topic.BASE, ThreadStep.CLOSE),
    NoticeKind.SILENT: (Topic.SILENCE, ThreadStep.OPEN),
    NoticeKind.REPORTING: (Topic.SILENCE, ThreadStep.CLOSE),
    NoticeKind.DEMOTED: (Topic.LEVEL, ThreadStep.OPEN),
    NoticeKind.ALARMED: (Topic.LEVEL, ThreadStep.OPEN),
    NoticeKind.RESTORED: (Topic.LEVEL, ThreadStep.CLOSE),
    NoticeKind.ELIGIBLE: (Topic.ELIGIBILITY, ThreadStep.OPEN),
    NoticeKind.NOT_ELIGIBLE: (Topic.ELIGIBILITY, ThreadStep.CLOSE),
    NoticeKind.GATE_FAILED: (Topic.GATE, ThreadStep.OPEN),
    NoticeKind.GATE_RESOLVED: (Topic.GATE, ThreadStep.CLOSE),
    NoticeKind.BISECTED: (Topic.BISECTION, ThreadStep.REPORT),
    NoticeKind.SETUP_BROKEN: (Topic.SETUP, ThreadStep.OPEN),
    NoticeKind.SETUP_REPAIRED: (Topic.SETUP, ThreadStep.CLOSE),
    NoticeKind.BREAKING: (Topic.BREAKING, ThreadStep.OPEN),
    NoticeKind.BREAKING_ENDED: (Topic.BREAKING, ThreadStep.CLOSE),
    NoticeKind.TEST: (Topic.SETUP, ThreadStep.REPORT),
}


class SetupItem(StrEnum):
    """A part of a set-up that can break; the item of a thread about it."""

    APP = "app"
    """The App's installation on a backend."""
    REPORTS = "reports"
    """A backend's reports, when all are refused."""
    CREDENTIALS = "credentials"
    """The App's own tokens, when GitHub refuses them."""
    ALLOWLIST = "allowlist"


class ThreadState(StrEnum):
    NONE = "none"
    """There is no thread of this subject, or it was closed long ago."""
    OPEN = "open"
    CLOSED = "closed"
    """Less than `REOPENED_WITHIN` ago."""


class ThreadChange(StrEnum):
    OPENED = "opened"
    UPDATED = "updated"
    CLOSED = "closed"
    REOPENED = "reopened"
    REPORTED = "reported"
    NOTHING = "nothing"


ENDING = frozenset({ThreadChange.CLOSED, ThreadChange.REPORTED})
"""Changes after which the thread is closed."""
THREADS: Mapping[tuple[ThreadState, ThreadStep], ThreadChange] = {
    (ThreadState.NONE, ThreadStep.OPEN): ThreadChange.OPENED,
    (ThreadState.OPEN, ThreadStep.OPEN): ThreadChange.UPDATED,
    (ThreadState.CLOSED, ThreadStep.OPEN): ThreadChange.REOPENED,
    (ThreadState.NONE, ThreadStep.CLOSE): ThreadChange.NOTHING,
    (ThreadState.OPEN, ThreadStep.CLOSE): ThreadChange.CLOSED,
    (ThreadState.CLOSED, ThreadStep.CLOSE): ThreadChange.NOTHING,
    (ThreadState.NONE, ThreadStep.REPORT): ThreadChange.REPORTED,
    (ThreadState.OPEN, ThreadStep.REPORT): ThreadChange.UPDATED,
    (ThreadState.CLOSED, ThreadStep.REPORT): ThreadChange.NOTHING,
}
"""What each step does to a thread in each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeEvent:
    """A change that people are told about; `summary` and `details` may have untrusted parts and are shown as text."""

    kind: NoticeKind
    upstream: RepoName
    backend: RepoName | None = None
    number: int | None = None
    """The pull request."""
    item: str = ""
    """What tells subjects of one topic apart that have the same backend and pull request."""
    summary: str
    details: tuple[str, ...] = ()
    path: str = "/crcr"
    """The relay's page about it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", cut_line(self.summary, _LONGEST_SUMMARY))
        lines = [cut_line(line, _LONGEST_DETAIL) for line in self.details[:_MOST_DETAILS]]
        left = len(self.details) - len(lines)
        object.__setattr__(self, "details", (*lines, f"and {left:,} more") if left > 0 else tuple(lines))

    @property
    def topic(self) -> Topic:
        return KINDS[self.kind][0]

    @property
    def step(self) -> ThreadStep:
        return KINDS[self.kind][1]


def cut_line(text: str, most: int) -> str:
    """Return the text on one line, with at most so many characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: most * 4]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def thread_state(*, is_open: bool, closed_at: datetime | None, now: datetime) -> ThreadState:
    """Return the state of a recorded thread."""
    if is_open:
        return ThreadState.OPEN
    is_recent = closed_at is not None and now - closed_at < REOPENED_WITHIN
    return ThreadState.CLOSED if is_recent else ThreadState.NONE


# Channels


class ChannelKind(StrEnum):
    ISSUE = "issue"
    """An issue in the backend's repository, one for each thread."""
    COMMENT = "comment"
    """One comment on the upstream's pull request."""
    SLACK = "slack"
    WEBHOOK = "webhook"
    EMAIL = "email"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` until `end`, over midnight where `start` is later."""

    start: time
    end: time

    def contain(self, at: time) -> bool:
        if self.start <= self.end:
            return self.start <= at < self.end
        return at >= self.start or at < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """A channel without its address: what is sent to it, and when."""

    name: str
    kind: ChannelKind
    quiet: QuietHours | None = None
    digest: time | None = None
    """The time of day at which everything since the day before is sent; None: as it happens."""
    zone: tzinfo = field(default=UTC)


_IN_PLACE = frozenset({ChannelKind.ISSUE, ChannelKind.COMMENT})
_ALL_CHANGES = frozenset(ThreadChange) - {ThreadChange.NOTHING}
_NEWS = _ALL_CHANGES - {ThreadChange.UPDATED}
CHANGES_SENT: Mapping[ChannelKind, frozenset[ThreadChange]] = {
    ChannelKind.ISSUE: _ALL_CHANGES,
    ChannelKind.COMMENT: _ALL_CHANGES,
    ChannelKind.WEBHOOK: _ALL_CHANGES,
    ChannelKind.SLACK: _NEWS,
    ChannelKind.EMAIL: _NEWS,
}
"""Where a message cannot be changed afterwards, an update of a thread would only repeat it."""


def find_destination(kind: ChannelKind, event: NoticeEvent) -> str | None:
    """Return where in the channel the event goes: a repository, a pull request, or "" for a channel with one address.

    None where the channel has no place for it: an issue about the App's missing installation cannot be written.
    """
    if kind is ChannelKind.ISSUE:
        can_write = event.item != SetupItem.APP and event.backend is not None
        return event.backend.key if can_write and event.backend else None
    if kind is ChannelKind.COMMENT:
        return None if event.number is None else str(event.number)
    return ""


def send_at(rules: ChannelRules, now: datetime) -> datetime:
    """Return when an event of now is sent: after gathering, at the next digest, and never in quiet hours."""
    gathering = GATHERING_IN_PLACE if rules.kind in _IN_PLACE else GATHERING
    at = now + gathering if rules.digest is None else _next_time(rules.digest, now, rules.zone)
    return quiet_end(rules, at) or at.astimezone(UTC)


def quiet_end(rules: ChannelRules, at: datetime) -> datetime | None:
    """Return the end of the quiet hours that this time is in; None where it is in none."""
    if rules.quiet is None or not rules.quiet.contain(at.astimezone(rules.zone).time()):
        return None
    return _next_time(rules.quiet.end, at, rules.zone).astimezone(UTC)


def _next_time(of_day: time, after: datetime, zone: tzinfo) -> datetime:
    """Return the next moment after this at which clocks in the zone show that time."""
    day = after.astimezone(zone).date()
    for ahead in range(3):
        at = datetime.combine(day + timedelta(days=ahead), of_day, tzinfo=zone)
        # Compared in UTC: two times of one zone compare by their faces, also where the clocks change between them.
        if at.astimezone(UTC) > after.astimezone(UTC):
            return at
    raise ValueError("there is no such time of day")
