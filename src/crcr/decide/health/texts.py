"""Texts about waiting effects: their classes, the limit that holds them back, and gates that are not published yet.

Plain text for pages, comments, the API and the terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from crcr.decide.checks.check_run import Tier
from crcr.decide.model import EffectKind
from crcr.decide.outbox.effect import CHECKS_QUEUE, EffectFault
from crcr.errors import HeldBy

PUBLISHED_WITHIN = timedelta(seconds=5)
"""A decided gate is published within this time; after it, the gate is late."""


class EffectClass(StrEnum):
    """Classes of effects in texts; the most urgent first."""

    GATES = "gates"
    DISPATCHES = "dispatches"
    QUESTIONS = "questions"
    BACKEND_CHECKS = "backend_checks"
    DETAILS = "details"
    NOTICES = "notices"
    FORWARDS = "forwards"
    HISTORY = "history"


GITHUB = "GitHub"
_SERVICES = {
    EffectClass.NOTICES: "a channel of notices",
    EffectClass.FORWARDS: "the other HUD",
    EffectClass.HISTORY: "ClickHouse",
}
OTHER_SERVICES = tuple(_SERVICES.values())


def called_service(effects: EffectClass) -> str:
    """Return the service that effects of this class call."""
    return _SERVICES.get(effects, GITHUB)


def effect_class(kind: str, target: str) -> EffectClass:
    if kind == EffectKind.PUBLISH_CHECKS:
        return _TIERS.get(target.removeprefix(CHECKS_QUEUE), EffectClass.DETAILS)
    return _KINDS.get(kind, EffectClass.DETAILS)


_TIERS: Mapping[str, EffectClass] = {
    Tier.GATE.value: EffectClass.GATES,
    Tier.BACKEND.value: EffectClass.BACKEND_CHECKS,
    Tier.JOB.value: EffectClass.DETAILS,
}
_KINDS: Mapping[str, EffectClass] = {
    EffectKind.SEND_DISPATCH: EffectClass.DISPATCHES,
    EffectKind.RERUN: EffectClass.DISPATCHES,
    EffectKind.ASK_FILES: EffectClass.QUESTIONS,
    EffectKind.READ_GROUP: EffectClass.QUESTIONS,
    EffectKind.CONFIRM_HEAD: EffectClass.QUESTIONS,
    EffectKind.IDENTIFY_REPOSITORY: EffectClass.QUESTIONS,
    EffectKind.REFRESH_ALLOWLIST: EffectClass.QUESTIONS,
    EffectKind.ANSWER_COMMAND: EffectClass.QUESTIONS,
    EffectKind.OFFER_WAIVER: EffectClass.QUESTIONS,
    EffectKind.ROUTE_NOTICES: EffectClass.NOTICES,
    EffectKind.SEND_NOTICES: EffectClass.NOTICES,
    EffectKind.FORWARD_RESULT: EffectClass.FORWARDS,
    EffectKind.WRITE_DYNAMODB: EffectClass.FORWARDS,
    EffectKind.FEED_HISTORY: EffectClass.HISTORY,
}


# What holds an effect back

_LIMITS = {
    HeldBy.HOUR: "requests per hour",
    HeldBy.MINUTE: "points per minute",
    HeldBy.CONTENT: "comments",
    HeldBy.SECONDARY: "secondary limit",
}


def held_words(held_by: HeldBy | None, until: datetime | None, now: datetime) -> str:
    """Return the limit and its end, for the middle of a sentence."""
    limit = f" ({_LIMITS[held_by]})" if held_by in _LIMITS else ""
    if until is None or until <= now:
        return f"held back by GitHub's rate limit{limit}, about to be tried again"
    return f"held back by GitHub's rate limit until {end_time(until, now)}{limit}"


def fault_words(fault: EffectFault | None, since: datetime, now: datetime, service: str = GITHUB) -> str:
    if fault is EffectFault.CREDENTIALS:
        return f"{service} refuses our credentials"
    return f"{service} has not answered since {clock_time(since, now)}"


class WaitingEffect(Protocol):
    """The fields of a waiting effect that say why it waits."""

    @property
    def held_by(self) -> HeldBy | None: ...
    @property
    def due_at(self) -> datetime | None: ...
    @property
    def fault(self) -> EffectFault | None: ...
    @property
    def fault_since(self) -> datetime | None: ...


def waiting_words(effect: WaitingEffect, now: datetime, service: str = GITHUB) -> str | None:
    """Return why an effect waits, unless it only waits for its turn or failed by itself."""
    if effect.held_by is not None:
        return held_words(effect.held_by, effect.due_at, now)
    if effect.fault is None:
        return None
    return fault_words(effect.fault, effect.fault_since or now, now, service)


# Gates that GitHub does not show as they were decided


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePublication:
    """A decided gate that is not published yet, at a point in time."""

    at: datetime
    decided_at: datetime | None
    due_at: datetime | None = None
    """When the next attempt to publish it is due."""
    held_by: HeldBy | None = None
    fault: EffectFault | None = None
    fault_since: datetime | None = None
    parked: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it is worth a notice: publication takes some seconds anyway."""
        is_stuck = self.parked or self.fault is not None or self.held_by is not None
        return is_stuck or self.decided_at is None or self.at - self.decided_at >= PUBLISHED_WITHIN

    @property
    def reason(self) -> str:
        """Why it is not published, as the end of a sentence."""
        if self.parked:
            return "publishing it was given up after repeated failures; an administrator can retry it"
        return waiting_words(self, self.at) or "it waits for its turn"

    @property
    def text(self) -> str:
        decided = f"Decided at {clock_time(self.decided_at, self.at)}, not" if self.decided_at else "Not"
        return f"{decided} yet published on GitHub: {self.reason}."


# Words

_WORDS = {
    EffectClass.GATES: ("1 gate", "{:,} gates"),
    EffectClass.DISPATCHES: ("1 dispatch", "{:,} dispatches"),
    EffectClass.QUESTIONS: (
        "1 question to GitHub or command answer",
        "{:,} questions to GitHub and command answers",
    ),
    EffectClass.BACKEND_CHECKS: ("backend checks of 1 commit", "backend checks of {:,} commits"),
    EffectClass.DETAILS: ("1 job check or look-up", "{:,} job checks and look-ups"),
    EffectClass.NOTICES: ("1 batch of notices", "{:,} batches of notices"),
    EffectClass.FORWARDS: ("1 result for the other HUD", "{:,} results for the other HUD"),
    EffectClass.HISTORY: ("1 transfer to ClickHouse", "{:,} transfers to ClickHouse"),
}


def count_effects(effects: EffectClass, number: int) -> str:
    singular, plural = _WORDS[effects]
    return singular if number == 1 else plural.format(number)


def join_words(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def clock_time(at: datetime, now: datetime) -> str:
    """Format a time of today as hours and minutes, others with the day."""
    utc = at.astimezone(UTC)
    day = "" if utc.date() == now.astimezone(UTC).date() else f"{utc:%b} {utc.day}, "
    return f"{day}{utc:%H:%M} UTC"


def end_time(until: datetime, now: datetime) -> str:
    """Format a future time, to the second when it is near; rounded up."""
    if until - now >= timedelta(minutes=2):
        return clock_time(until + timedelta(seconds=59, microseconds=999_999), now)
    utc = (until + timedelta(microseconds=999_999)).astimezone(UTC)
    return f"{utc:%H:%M:%S} UTC"
