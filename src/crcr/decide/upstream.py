"""What an upstream event leads to: who is told, what is held, what is dropped.

One pure function from an event and what is known to a `Plan`; `record` writes the plan in one transaction.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.allowlist import Allowlist, Entry
from crcr.decide.events import PullRequest, Push
from crcr.decide.model import DeliveryState, DispatchState, Pull
from crcr.decide.ordering import Place, move_head, place, present, touch
from crcr.decide.selection import DISPATCHED_ACTIONS, Choice, Verdict, select

HEAD_IN_DOUBT = "head in doubt"
DRAFT = "draft"


class Drop(StrEnum):
    """Which unsent dispatches of the pull request an event makes pointless."""

    NONE = "none"
    OLDER_HEADS = "older heads"
    ALL_BUT_CLOSED = "all but closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamFacts:
    allowlist: Allowlist
    ignore_refs: tuple[str, ...]
    suspended: frozenset[str]
    """Keys of downstreams that an operator has suspended."""
    pull: Pull | None


@dataclass(frozen=True, slots=True)
class PlannedDispatch:
    entry: Entry
    state: DispatchState
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    state: DeliveryState = DeliveryState.ACCEPTED
    reason: str | None = None
    pull: Pull | None = None
    """The pull request as it is after this event; None leaves the record alone."""
    dispatches: tuple[PlannedDispatch, ...] = ()
    drop: Drop = Drop.NONE
    releases_drafts: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """Nobody wants it: answered, counted, not stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    dispatches: int
    state: DeliveryState


@dataclass(frozen=True, slots=True)
class Seen:
    """The GUID was processed before."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery as it came in; `body` is compressed, `body_bytes` is its real size."""

    guid: str
    event: str
    source: str
    body: bytes
    body_bytes: int
    received_at: datetime


def plan(event: PullRequest | Push, facts: UpstreamFacts) -> Plan | Ignored:
    if isinstance(event, Push):
        return _plan_push(event, facts)
    if event.action in DISPATCHED_ACTIONS:
        return _plan_dispatching(event, facts)
    return _plan_record_only(event, facts)


def _plan_push(event: Push, facts: UpstreamFacts) -> Plan | Ignored:
    dispatches = _dispatches(event, facts)
    if not dispatches:
        return Ignored(f"no downstream takes pushes to {event.ref}")
    return Plan(dispatches=dispatches)


def _plan_dispatching(event: PullRequest, facts: UpstreamFacts) -> Plan:
    where = place(event, facts.pull)
    if where is Place.STALE:
        return Plan(state=DeliveryState.SUPERSEDED, reason=_why_stale(event, facts.pull))
    dispatches = _dispatches(present(event, facts.pull), facts)
    if where is Place.DOUBT:
        held = tuple(_held_in_doubt(each) for each in dispatches)
        return Plan(state=DeliveryState.IN_DOUBT, reason=HEAD_IN_DOUBT, dispatches=held)
    drop = Drop.ALL_BUT_CLOSED if event.action == "closed" else Drop.OLDER_HEADS
    return Plan(pull=move_head(event, facts.pull), dispatches=dispatches, drop=drop)


def _plan_record_only(event: PullRequest, facts: UpstreamFacts) -> Plan:
    """Labels, drafts and edits change what we know of the pull request, and may release what was held."""
    pull = touch(event, facts.pull)
    if pull is None:
        return Plan(state=DeliveryState.SUPERSEDED, reason=_why_stale(event, facts.pull))
    return Plan(pull=pull, releases_drafts=not pull.draft)


def _dispatches(event: PullRequest | Push, facts: UpstreamFacts) -> tuple[PlannedDispatch, ...]:
    choices = select(event, facts.allowlist, ignore_refs=facts.ignore_refs)
    return tuple(
        PlannedDispatch(choice.entry, _STATE_OF[choice.verdict], choice.reason)
        for choice in choices
        if choice.verdict is not Verdict.NOT_CONCERNED and not _suspended(choice, facts)
    )


_STATE_OF = {Verdict.DISPATCH: DispatchState.WAITING, Verdict.HOLD: DispatchState.HELD}


def _held_in_doubt(dispatch: PlannedDispatch) -> PlannedDispatch:
    """What waits for something else goes on waiting for it: the end of the doubt must not release it."""
    if dispatch.state is DispatchState.HELD:
        return dispatch
    return PlannedDispatch(dispatch.entry, DispatchState.HELD, HEAD_IN_DOUBT)


def _suspended(choice: Choice, facts: UpstreamFacts) -> bool:
    return choice.entry.name.key in facts.suspended


def _why_stale(event: PullRequest, known: Pull | None) -> str:
    if known is not None and not known.is_open and event.is_open:
        return "the pull request was closed since"
    if known is not None and known.head_sha != event.head_sha:
        return f"older than the known head {known.head_sha[:12]}"
    return "older than what is known of the pull request"
