"""The relay's health for its readers: green, amber or red, with one sentence for each reason, the most serious first.

From recorded facts alone: pages and workers are different processes. Amber says that something waits or needs
attention, red that gates cannot be published or that nothing is delivered. The sentences name no repository, so that
everybody may read them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.health.texts import (
    GITHUB,
    OTHER_SERVICES,
    PUBLISHED_WITHIN,
    EffectClass,
    called_service,
    capitalize,
    clock_time,
    count_effects,
    fault_words,
    held_words,
    join_words,
)
from crcr.decide.outbox.effect import EffectFault
from crcr.errors import HeldBy

_HELD_SHORTLY = timedelta(minutes=1)
"""A shorter hold is pacing, and not worth a sentence, unless it is urgent."""
_GATE_BLOCKED = timedelta(minutes=1)
_GATE_VERY_LATE = timedelta(minutes=2)
_UNANSWERED_SHOWN = timedelta(seconds=10)
_BEHIND = timedelta(minutes=2)
_STUCK = timedelta(minutes=15)
_SILENT = timedelta(hours=24)
REFUSED_SHOWN = timedelta(minutes=15)
"""How long a refused webhook is mentioned."""


class HealthState(StrEnum):
    RED = "red"
    AMBER = "amber"
    GREEN = "green"


class ReasonCode(StrEnum):
    """Why the relay is not green."""

    GATES_UNPUBLISHED = "gates_unpublished"
    CREDENTIALS_REFUSED = "credentials_refused"
    UNANSWERED = "unanswered"
    NO_ALLOWLIST = "no_allowlist"
    BEHIND = "behind"
    HELD_BACK = "held_back"
    PARKED = "parked"
    PAUSED = "paused"
    ALLOWLIST_BAD = "allowlist_bad"
    WEBHOOKS_REFUSED = "webhooks_refused"
    WEBHOOKS_SILENT = "webhooks_silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEffects:
    """Effects of one class that wait or are under way, for the same reason."""

    effects: EffectClass
    number: int
    created_at: datetime
    """Of the oldest."""
    due_at: datetime
    """The earliest due time of the group; `until` is the latest."""
    until: datetime
    held_by: HeldBy | None = None
    fault: EffectFault | None = None
    fault_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGates:
    """Gates that are decided, or to be decided again, and not published yet."""

    number: int
    since: datetime
    until: datetime
    held_by: HeldBy | None = None
    fault: EffectFault | None = None
    fault_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class RefusedWebhooks:
    """Webhooks in GitHub's format with a wrong signature."""

    number: int
    since: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The recorded facts that one upstream's health is computed from."""

    open_effects: tuple[OpenEffects, ...] = ()
    gates: tuple[WaitingGates, ...] = ()
    parked: tuple[tuple[EffectClass, int], ...] = ()
    paused_at: datetime | None = None
    has_allowlist: bool = True
    allowlist_bad: bool = False
    last_delivery_at: datetime | None = None
    refused: RefusedWebhooks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    code: ReasonCode
    state: HealthState
    text: str
    effects: EffectClass | None = None
    number: int | None = None
    since: datetime | None = None
    until: datetime | None = None


def _reason_signature(reason: Reason) -> str:
    number = reason.number if reason.code is ReasonCode.GATES_UNPUBLISHED else ""
    until = f"{reason.until:%H:%M}" if reason.until else ""
    return f"{reason.state} {reason.code} {reason.effects or ''} {number} {until}"


@dataclass(frozen=True, slots=True)
class HeldClass:
    """Effects of one class that GitHub's limits hold back, even briefly."""

    effects: EffectClass
    number: int
    held_by: HeldBy | None
    until: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    state: HealthState = HealthState.GREEN
    reasons: tuple[Reason, ...] = ()
    held: tuple[HeldClass, ...] = ()

    @property
    def signature(self) -> tuple[str, ...]:
        """Changes when an open page must be refreshed; the counts of less urgent effects are left out."""
        return tuple(map(_reason_signature, self.reasons))


def judge_health(facts: HealthFacts, now: datetime) -> Health:
    """Return the reasons, the most serious first, and the state of the worst of them."""
    unsorted = [
        *_gate_reasons(facts, now),
        *_credential_reasons(facts),
        *_unanswered_reasons(facts, now),
        *_behind_reasons(facts, now),
        *_held_reasons(facts, now),
        *_parked_reasons(facts),
        *_paused_reasons(facts, now),
        *_allowlist_reasons(facts),
        *_webhook_reasons(facts, now),
    ]
    order = list(HealthState)
    codes = list(ReasonCode)
    reasons = sorted(unsorted, key=lambda reason: (order.index(reason.state), codes.index(reason.code)))
    state = reasons[0].state if reasons else HealthState.GREEN
    return Health(state, tuple(reasons), _held_classes(facts, now))


def cautious_state(health: Health | None, *, doubtful: bool) -> HealthState | None:
    """Return the state for a single sign: None while it is unknown, and never green while something is in doubt."""
    if health is None:
        return None
    return HealthState.AMBER if doubtful and health.state is HealthState.GREEN else health.state


def worst_state(healths: Iterable[Health]) -> HealthState:
    order = list(HealthState)
    return min((health.state for health in healths), key=order.index, default=HealthState.GREEN)


# Gates


def _gate_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    waiting = [gates for gates in facts.gates if _is_late(gates, now)]
    if not waiting:
        return
    number, since = sum(gates.number for gates in waiting), min(gates.since for gates in waiting)
    held = [gates for gates in waiting if gates.held_by is not None]
    until = max((gates.until for gates in held), default=None)
    blocked = any(gates.until - now >= _GATE_BLOCKED for gates in held)
    blocked = blocked or any(gates.fault is EffectFault.CREDENTIALS for gates in waiting)
    red = blocked or now - since >= _GATE_VERY_LATE
    gates_text = "1 gate is" if number == 1 else f"{number:,} gates are"
    since_text = (
        f"since {clock_time(since, now)}" if number == 1 else f"the oldest since {clock_time(since, now)}"
    )
    reason_text = (
        f": {_gate_hold_text(waiting, until, now)}" if any(_is_blocked(gates) for gates in waiting) else ""
    )
    yield Reason(
        code=ReasonCode.GATES_UNPUBLISHED,
        state=HealthState.RED if red else HealthState.AMBER,
        text=f"{gates_text} decided and not yet published on GitHub, {since_text}{reason_text}.",
        effects=EffectClass.GATES,
        number=number,
        since=since,
        until=_future_time(until, now),
    )


def _is_blocked(gates: WaitingGates) -> bool:
    return gates.held_by is not None or gates.fault is not None


def _is_late(gates: WaitingGates, now: datetime) -> bool:
    return _is_blocked(gates) or now - gates.since >= PUBLISHED_WITHIN


def _gate_hold_text(waiting: list[WaitingGates], until: datetime | None, now: datetime) -> str:
    faulty = [gates for gates in waiting if gates.fault is not None]
    if faulty and until is None:
        since = min((gates.fault_since or gates.since for gates in faulty), default=now)
        return fault_words(faulty[0].fault, since, now)
    held_by = next(gates.held_by for gates in waiting if gates.held_by is not None)
    return held_words(held_by, until, now)


# External services do not answer


def _credential_reasons(facts: HealthFacts) -> Iterable[Reason]:
    refused = [
        group for group in facts.open_effects if group.fault is EffectFault.CREDENTIALS and _is_github(group)
    ]
    if refused:
        yield Reason(
            code=ReasonCode.CREDENTIALS_REFUSED,
            state=HealthState.RED,
            text="GitHub refuses the App's credentials: check the App's id, its private key and this machine's clock.",
            number=sum(group.number for group in refused),
            since=min((group.fault_since or group.created_at) for group in refused),
        )


def _unanswered_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    for service in (GITHUB, *OTHER_SERVICES):
        failing = [
            group
            for group in facts.open_effects
            if group.fault is EffectFault.UNANSWERED
            and called_service(group.effects) == service
            and now - (group.fault_since or now) >= _UNANSWERED_SHOWN
        ]
        if failing:
            yield _unanswered_reason(service, failing, now)


def _unanswered_reason(service: str, failing: list[OpenEffects], now: datetime) -> Reason:
    since = min(group.fault_since or now for group in failing)
    number = sum(group.number for group in failing)
    gates = any(
        group.effects is EffectClass.GATES and now - (group.fault_since or now) >= _GATE_BLOCKED
        for group in failing
    )
    kinds = join_words([count_effects(group.effects, group.number) for group in _merge_by_class(failing)])
    return Reason(
        code=ReasonCode.UNANSWERED,
        state=HealthState.RED if gates else HealthState.AMBER,
        text=f"{capitalize(service)} has not answered since {clock_time(since, now)}; to be tried again: {kinds}.",
        effects=failing[0].effects if len(failing) == 1 else None,
        number=number,
        since=since,
    )


def _is_github(group: OpenEffects) -> bool:
    return called_service(group.effects) == GITHUB


# Waiting effects


def _behind_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    due = [
        group
        for group in facts.open_effects
        if group.held_by is None
        and group.fault is None
        and not (facts.paused_at and group.effects is EffectClass.DISPATCHES)
    ]
    oldest = min((group.due_at for group in due), default=now)
    if now - oldest >= _BEHIND:
        stuck = now - oldest >= _STUCK
        words = "Nothing is delivered" if stuck else "Outgoing calls are behind"
        yield Reason(
            code=ReasonCode.BEHIND,
            state=HealthState.RED if stuck else HealthState.AMBER,
            text=f"{words}: the oldest has been due since {clock_time(oldest, now)}. Is a worker running?",
            number=sum(group.number for group in due if group.due_at <= now),
            since=oldest,
        )


def _held_classes(facts: HealthFacts, now: datetime) -> tuple[HeldClass, ...]:
    held = _merge_by_class(group for group in facts.open_effects if group.held_by is not None)
    return tuple(
        HeldClass(group.effects, group.number, group.held_by, group.until, _held_text(group, now))
        for group in held
    )


def _held_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    gates_are_late = any(_is_late(gates, now) for gates in facts.gates)
    for held in _merge_by_class(group for group in facts.open_effects if group.held_by is not None):
        gates = held.effects is EffectClass.GATES
        long = max(held.until - now, now - held.created_at) >= _HELD_SHORTLY
        if gates_are_late if gates else not long:
            continue
        blocked = gates and held.until - now >= _GATE_BLOCKED
        yield Reason(
            code=ReasonCode.HELD_BACK,
            state=HealthState.RED if blocked else HealthState.AMBER,
            text=_held_text(held, now),
            effects=held.effects,
            number=held.number,
            since=held.created_at,
            until=_future_time(held.until, now),
        )


def _future_time(until: datetime | None, now: datetime) -> datetime | None:
    return until if until is not None and until > now else None


def _held_text(group: OpenEffects, now: datetime) -> str:
    many = group.number > 1 or group.effects is EffectClass.BACKEND_CHECKS
    effects_text = f"{capitalize(count_effects(group.effects, group.number))} {'are' if many else 'is'}"
    return f"{effects_text} {held_words(group.held_by, group.until, now)}."


def _merge_by_class(groups: Iterable[OpenEffects]) -> list[OpenEffects]:
    """Return one entry for each class, the most urgent first, with the latest end and its limit."""
    by_class: dict[EffectClass, list[OpenEffects]] = {}
    for group in groups:
        by_class.setdefault(group.effects, []).append(group)
    return [
        _merge_effects(by_class[effect_class]) for effect_class in EffectClass if effect_class in by_class
    ]


def _merge_effects(groups: list[OpenEffects]) -> OpenEffects:
    last = max(groups, key=lambda group: group.until)
    return OpenEffects(
        effects=last.effects,
        number=sum(group.number for group in groups),
        created_at=min(group.created_at for group in groups),
        due_at=min(group.due_at for group in groups),
        until=last.until,
        held_by=last.held_by,
        fault=last.fault,
        fault_since=min((group.fault_since for group in groups if group.fault_since), default=None),
    )


# Reasons that need an operator


def _parked_reasons(facts: HealthFacts) -> Iterable[Reason]:
    parked = [(effects, number) for effects, number in facts.parked if number]
    if not parked:
        return
    number = sum(count for _, count in parked)
    gates = any(effects is EffectClass.GATES for effects, _ in parked)
    kinds = join_words([count_effects(effects, count) for effects, count in parked])
    yield Reason(
        code=ReasonCode.PARKED,
        state=HealthState.RED if gates else HealthState.AMBER,
        text=f"Undelivered after repeated failures, to be retried by an administrator: {kinds}.",
        effects=parked[0][0] if len(parked) == 1 else None,
        number=number,
    )


def _paused_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    if facts.paused_at is not None:
        yield Reason(
            code=ReasonCode.PAUSED,
            state=HealthState.AMBER,
            text=f"Dispatching has been paused by an administrator since {clock_time(facts.paused_at, now)}.",
            effects=EffectClass.DISPATCHES,
            since=facts.paused_at,
        )


def _allowlist_reasons(facts: HealthFacts) -> Iterable[Reason]:
    if not facts.has_allowlist:
        text = "No valid allowlist has been read, so nothing is dispatched."
        yield Reason(code=ReasonCode.NO_ALLOWLIST, state=HealthState.RED, text=text)
    elif facts.allowlist_bad:
        text = "The newest allowlist has errors and was not accepted; the version before it is in force."
        yield Reason(code=ReasonCode.ALLOWLIST_BAD, state=HealthState.AMBER, text=text)


def _webhook_reasons(facts: HealthFacts, now: datetime) -> Iterable[Reason]:
    last, refused = facts.last_delivery_at, facts.refused
    if refused is not None and now - refused.last_at < REFUSED_SHOWN:
        signed = last is not None and last >= refused.since
        # Anybody can send a webhook with a wrong signature, so it is never more than amber.
        sender_text = (
            "Others arrive with the right one, so these may not be GitHub's."
            if signed
            else "Either the App has another secret, or they are not GitHub's."
        )
        webhooks = "1 webhook was" if refused.number == 1 else f"{refused.number:,} webhooks were"
        yield Reason(
            code=ReasonCode.WEBHOOKS_REFUSED,
            state=HealthState.AMBER,
            text=f"{webhooks} refused since {clock_time(refused.since, now)}: the signature does not match"
            f" CRCR_GITHUB_WEBHOOK_SECRET. {sender_text}",
            number=refused.number,
            since=refused.since,
        )
    if last is not None and now - last >= _SILENT:
        yield Reason(
            code=ReasonCode.WEBHOOKS_SILENT,
            state=HealthState.AMBER,
            text=f"No webhook has arrived since {clock_time(last, now)}.",
            since=last,
        )
