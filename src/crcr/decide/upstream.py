"""What an upstream event leads to: who is told, what is held, what is dropped.

One pure function from an event and what is known to a `Plan`; `record` writes the plan in one transaction.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.allowlist import Allowlist, Entry
from crcr.decide.events import MergeGroup, PullRequest, Push
from crcr.decide.model import DeliveryState, DispatchState, Level, Pull
from crcr.decide.ordering import Place, move_head, place, present, touch
from crcr.decide.selection import DISPATCHED_ACTIONS, Choice, Verdict, select

HEAD_IN_DOUBT = "head in doubt"
SUSPENDED = "suspended"


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
    pull: Pull | None = None
    approved: bool = False
    """Whether a person has approved the event's head."""
    gate_on: bool = False
    told_of_group: frozenset[str] | None = None
    """Keys of downstreams that were told of the event's merge group; None when nobody has heard of the group."""


@dataclass(frozen=True, slots=True)
class PlannedDispatch:
    entry: Entry
    state: DispatchState
    reason: str | None = None

    @property
    def leaves(self) -> bool:
        """Whether it is, or may become, a dispatch; the others are recorded for the gate to tell."""
        return self.state in {DispatchState.WAITING, DispatchState.HELD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    state: DeliveryState = DeliveryState.ACCEPTED
    reason: str | None = None
    pull: Pull | None = None
    """The pull request as it is after this event; None leaves the record alone."""
    dispatches: tuple[PlannedDispatch, ...] = ()
    drop: Drop = Drop.NONE
    reconsiders: bool = False
    """What is held of the pull request may have lost its reason."""


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
    """The GUID, or the same body under another one, was processed before."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery as it came in; `body` is compressed, `body_bytes` is its real size."""

    guid: str
    event: str
    source: str
    body: bytes
    body_bytes: int
    received_at: datetime
    body_digest: str | None = None
    """SHA-256 of the raw body; None for what did not come from outside."""


def plan(event: PullRequest | Push | MergeGroup, facts: UpstreamFacts) -> Plan | Ignored:
    if isinstance(event, Push):
        return _plan_push(event, facts)
    if isinstance(event, MergeGroup):
        return _plan_group(event, facts)
    if event.action in DISPATCHED_ACTIONS:
        return _plan_dispatching(event, facts)
    return _plan_record_only(event, facts)


def _plan_push(event: Push, facts: UpstreamFacts) -> Plan | Ignored:
    dispatches = _dispatches(event, facts)
    if not dispatches:
        return Ignored(f"no downstream takes pushes to {event.ref}")
    return Plan(dispatches=dispatches)


def _plan_group(event: MergeGroup, facts: UpstreamFacts) -> Plan | Ignored:
    begins = event.action == "checks_requested"
    if facts.told_of_group is None:
        dispatches = _dispatches(event, facts)
        if not facts.gate_on and not any(each.leaves for each in dispatches):
            return Ignored("no downstream takes merge groups, and there is no gate")
        # An end that overtakes its beginning is kept: the group must not begin when that arrives.
        return Plan(dispatches=dispatches if begins else ())
    if begins:
        return Ignored(f"the merge group {event.head_sha[:12]} is known")
    # Whoever was told of the group is told of its end; the others have nothing to cancel.
    told = (entry for entry in facts.allowlist.entries if entry.name.key in facts.told_of_group)
    waiting = tuple(PlannedDispatch(entry, DispatchState.WAITING) for entry in told)
    return Plan(dispatches=tuple(each for each in waiting if each.entry.name.key not in facts.suspended))


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
    return Plan(pull=pull, reconsiders=True)


def _dispatches(event: PullRequest | Push | MergeGroup, facts: UpstreamFacts) -> tuple[PlannedDispatch, ...]:
    choices = select(event, facts.allowlist, ignore_refs=facts.ignore_refs, approved=facts.approved)
    told = not isinstance(event, Push) and event.action != "closed"
    planned = (_planned(choice, facts) for choice in choices)
    return tuple(each for each in planned if each.leaves or (told and each.entry.level is Level.L4))


def _planned(choice: Choice, facts: UpstreamFacts) -> PlannedDispatch:
    if choice.verdict is not Verdict.NOT_CONCERNED and choice.entry.name.key in facts.suspended:
        return PlannedDispatch(choice.entry, DispatchState.CANCELLED, SUSPENDED)
    return PlannedDispatch(choice.entry, _STATE_OF[choice.verdict], choice.reason)


_STATE_OF = {
    Verdict.DISPATCH: DispatchState.WAITING,
    Verdict.HOLD: DispatchState.HELD,
    Verdict.NOT_CONCERNED: DispatchState.LEFT_OUT,
}


def _held_in_doubt(dispatch: PlannedDispatch) -> PlannedDispatch:
    """What waits for something else goes on waiting for it: the end of the doubt must not release it."""
    if dispatch.state is not DispatchState.WAITING:
        return dispatch
    return PlannedDispatch(dispatch.entry, DispatchState.HELD, HEAD_IN_DOUBT)


def _why_stale(event: PullRequest, known: Pull | None) -> str:
    if known is not None and not known.is_open and event.is_open:
        return "the pull request was closed since"
    if known is not None and known.head_sha != event.head_sha:
        return f"older than the known head {known.head_sha[:12]}"
    return "older than what is known of the pull request"
