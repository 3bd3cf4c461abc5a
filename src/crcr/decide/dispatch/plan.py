"""What an upstream event leads to: dispatches to send, to hold and to drop.

One pure function from an event and the known facts to a `DispatchPlan`; `record` writes the plan in one transaction.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.dispatch.ordering import (
    EventOrder,
    move_head,
    order_base,
    order_head,
    update_details,
    with_newest_details,
)
from crcr.decide.dispatch.selection import (
    DISPATCHED_ACTIONS,
    LABELS,
    RELEASING_ACTIONS,
    SelectedEntry,
    SelectionVerdict,
    select_entries,
)
from crcr.decide.events import MergeGroupEvent, PullRequestEvent, PushEvent
from crcr.decide.model import DeliveryState, DispatchState, KnownPull, Level

_QUEUE_REF = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([1-9][0-9]{0,8})-[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class GroupToRead:
    delivery: str
    head_sha: str
    base_sha: str
    head_ref: str
    base_ref: str
    """The branch that it is to be merged into."""


def base_branch(base_ref: str) -> str:
    """Return a group's base branch as pull requests name theirs: merge groups have the full ref."""
    return base_ref.removeprefix("refs/heads/")


def queued_pull_number(head_ref: str) -> int | None:
    """Return the number of the pull request that the queue made the group for, from its branch's name."""
    named = _QUEUE_REF.fullmatch(head_ref)
    return int(named[1]) if named else None


def pulls_in_group(named: int | None, brought: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """Return the pull requests of a group, from the pull requests that contain each of its commits.

    Empty when no queued pull request contains one of the commits: it belongs to a pull request whose own group is
    unknown, and which could reach the base branch on another's waiver.
    """
    brought = tuple(brought)
    if named is None or not all(brought):
        return ()
    return tuple(sorted({named}.union(*brought)))


BASE_CHANGED = "base_changed"
"""`relay.reason` of a dispatch that goes out because the pull request has another base now."""
HEAD_IN_DOUBT = "head in doubt"
SUSPENDED = "suspended"
SHADOW_REASON = "shadow"
"""The reason of a dispatch that counts as sent, and was not: the relay ran in shadow mode."""


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
    pull: KnownPull | None = None
    approved: bool = False
    """Whether a person has approved the event's head for its base."""
    dispatched: frozenset[str] = frozenset()
    """Keys of downstreams that were dispatched for the event's head and base before."""
    base_lacks_delivery: bool = False
    """The event's head and base are the known ones, and all recorded deliveries of that head are on other bases."""
    gate_on: bool = False
    downgraded: frozenset[str] = frozenset()
    """Keys of L4 downstreams that do not gate the event's head, because they fail the criteria of L3."""
    dispatched_to_group: frozenset[str] | None = None
    """Keys of downstreams that the event's merge group was dispatched to; None when the group is unknown."""


@dataclass(frozen=True, slots=True)
class PlannedDispatch:
    entry: AllowlistEntry
    state: DispatchState
    reason: str | None = None
    concerned: bool | None = None
    """Whether the changed files match its `paths`; None while they are unknown."""
    downgraded: bool = False
    """It is listed at L4, and does not gate this head."""

    @property
    def level(self) -> Level:
        """The level that it is recorded with."""
        return min(self.entry.level, Level.L3) if self.downgraded else self.entry.level

    @property
    def may_be_sent(self) -> bool:
        """Whether it is sent now or perhaps later; the others are recorded only for the gate."""
        return self.state in {DispatchState.WAITING, DispatchState.HELD}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPlan:
    state: DeliveryState = DeliveryState.ACCEPTED
    reason: str | None = None
    pull: KnownPull | None = None
    """The pull request as it is after this event; None leaves the record alone."""
    dispatches: tuple[PlannedDispatch, ...] = ()
    drop: Drop = Drop.NONE
    reconsiders_held: bool = False
    """Whether held dispatches of the pull request may have lost their reason."""
    reconsiders_left_out: bool = False
    """Whether backends that `labels` or `paths` left out may be concerned now."""
    relay_reason: str | None = None
    """Why a dispatch is sent that the event's action alone would not cause; its results count for the head."""
    sent_as: str | None = None
    """The action in the dispatch, where it differs from the event's own."""


@dataclass(frozen=True, slots=True)
class IgnoredEvent:
    """No downstream takes it: answered and counted, not stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class AcceptedDelivery:
    dispatches: int
    state: DeliveryState


@dataclass(frozen=True, slots=True)
class AlreadyProcessed:
    """The GUID, or the same body under another one, was processed before."""


@dataclass(frozen=True, slots=True)
class ReceivedDelivery:
    """One delivery as it came in; `body` is compressed, `body_bytes` is its real size."""

    guid: str
    event: str
    source: str
    body: bytes
    body_bytes: int
    received_at: datetime
    body_digest: str | None = None
    """SHA-256 of the raw body; None for a delivery that the relay made itself."""


def plan_dispatches(
    event: PullRequestEvent | PushEvent | MergeGroupEvent, facts: UpstreamFacts
) -> DispatchPlan | IgnoredEvent:
    if isinstance(event, PushEvent):
        return _plan_push(event, facts)
    if isinstance(event, MergeGroupEvent):
        return _plan_group(event, facts)
    if event.action in DISPATCHED_ACTIONS:
        return _plan_dispatching(event, facts)
    return _plan_record_only(event, facts)


def _plan_push(event: PushEvent, facts: UpstreamFacts) -> DispatchPlan | IgnoredEvent:
    dispatches = _plan_selected(event, facts)
    if not dispatches:
        return IgnoredEvent(f"no downstream takes pushes to {event.ref}")
    return DispatchPlan(dispatches=dispatches)


def _plan_group(event: MergeGroupEvent, facts: UpstreamFacts) -> DispatchPlan | IgnoredEvent:
    begins = event.action == "checks_requested"
    if facts.dispatched_to_group is None:
        dispatches = _plan_selected(event, facts)
        if not facts.gate_on and not any(dispatch.may_be_sent for dispatch in dispatches):
            return IgnoredEvent("no downstream takes merge groups, and there is no gate")
        # A `destroyed` that overtakes its `checks_requested` is stored: the group must not begin when that arrives.
        return DispatchPlan(dispatches=dispatches if begins else ())
    if begins:
        return IgnoredEvent(f"the merge group {event.head_sha[:12]} is known")
    # The end goes to the downstreams that were dispatched for the group; the others have nothing to cancel.
    entries = (entry for entry in facts.allowlist.entries if entry.name.key in facts.dispatched_to_group)
    waiting = tuple(PlannedDispatch(entry, DispatchState.WAITING) for entry in entries)
    return DispatchPlan(
        dispatches=tuple(dispatch for dispatch in waiting if dispatch.entry.name.key not in facts.suspended)
    )


def _plan_dispatching(event: PullRequestEvent, facts: UpstreamFacts) -> DispatchPlan:
    where = order_head(event, facts.pull)
    if where is EventOrder.STALE:
        if _is_first_for_base(event, facts):
            return _plan_base_change(event, facts)
        return DispatchPlan(state=DeliveryState.SUPERSEDED, reason=_stale_reason(event, facts.pull))
    closes = event.action == "closed"
    base = None if closes else order_base(event, facts.pull)
    dispatches = _plan_selected(with_newest_details(event, facts.pull), facts)
    moved = base is EventOrder.NEWER and facts.pull is not None
    relay_reason = BASE_CHANGED if moved or base is EventOrder.DOUBT else None
    if EventOrder.DOUBT in (where, base):
        held = tuple(_held_in_doubt(dispatch) for dispatch in dispatches)
        return DispatchPlan(
            state=DeliveryState.IN_DOUBT, reason=HEAD_IN_DOUBT, dispatches=held, relay_reason=relay_reason
        )
    return DispatchPlan(
        reason=_base_change_reason(event) if moved else None,
        pull=move_head(event, facts.pull),
        dispatches=dispatches,
        drop=Drop.ALL_BUT_CLOSED if closes else Drop.OLDER_HEADS,
        relay_reason=relay_reason,
    )


def _plan_record_only(event: PullRequestEvent, facts: UpstreamFacts) -> DispatchPlan:
    """Labels, drafts and edits change the known pull request, and may release held dispatches.

    A changed base makes any of them a new head: files that the old base left out may be in the diff now.
    """
    base = order_base(event, facts.pull)
    if event.is_open:
        if base is EventOrder.NEWER or _is_first_for_base(event, facts):
            return _plan_base_change(event, facts)
        if base is EventOrder.DOUBT:
            return _plan_base_in_doubt(event, facts)
    pull = update_details(event, facts.pull)
    if pull is None:
        return DispatchPlan(state=DeliveryState.SUPERSEDED, reason=_stale_reason(event, facts.pull))
    return DispatchPlan(
        pull=pull, reconsiders_held=True, reconsiders_left_out=event.action in RELEASING_ACTIONS
    )


def _plan_base_change(event: PullRequestEvent, facts: UpstreamFacts) -> DispatchPlan:
    """Dispatch the head again to every backend that takes pull requests, as if it had just been pushed."""
    head = replace(event, action="synchronize")
    return DispatchPlan(
        reason=_base_change_reason(event),
        pull=move_head(head, facts.pull),
        dispatches=_plan_selected(with_newest_details(head, facts.pull), facts),
        drop=Drop.OLDER_HEADS,
        relay_reason=BASE_CHANGED,
        sent_as=head.action,
    )


def _plan_base_in_doubt(event: PullRequestEvent, facts: UpstreamFacts) -> DispatchPlan:
    """Two bases within one second: labels and the like apply at once, the base after GitHub has answered."""
    head = replace(event, action="synchronize")
    touched = update_details(event, facts.pull)
    known = facts.pull
    return DispatchPlan(
        state=DeliveryState.IN_DOUBT,
        reason=HEAD_IN_DOUBT,
        pull=replace(touched, base_ref=known.base_ref) if touched and known else None,
        dispatches=tuple(
            _held_in_doubt(dispatch) for dispatch in _plan_selected(with_newest_details(head, known), facts)
        ),
        reconsiders_held=True,
        relay_reason=BASE_CHANGED,
        sent_as=head.action,
    )


def _is_first_for_base(event: PullRequestEvent, facts: UpstreamFacts) -> bool:
    """Whether this is the first delivery of the known head on the known base, even a late one."""
    return event.is_open and facts.pull is not None and facts.pull.is_open and facts.base_lacks_delivery


def _base_change_reason(event: PullRequestEvent) -> str:
    return f"base changed to {event.base_ref}"


def _plan_selected(
    event: PullRequestEvent | PushEvent | MergeGroupEvent, facts: UpstreamFacts
) -> tuple[PlannedDispatch, ...]:
    choices = select_entries(
        event,
        facts.allowlist,
        ignore_refs=facts.ignore_refs,
        approved=facts.approved,
        dispatched=facts.dispatched,
    )
    records_held = not isinstance(event, PushEvent) and event.action != "closed"
    planned = (_planned_dispatch(choice, facts) for choice in choices)
    return tuple(
        dispatch for dispatch in planned if dispatch.may_be_sent or (records_held and _is_recorded(dispatch))
    )


def _is_recorded(left_out: PlannedDispatch) -> bool:
    """Whether an unsent dispatch gets a row: the gate lists its members, and a label may release it later."""
    return left_out.entry.level is Level.L4 or left_out.reason == LABELS


def _planned_dispatch(choice: SelectedEntry, facts: UpstreamFacts) -> PlannedDispatch:
    if choice.verdict is not SelectionVerdict.NOT_CONCERNED and choice.entry.name.key in facts.suspended:
        return PlannedDispatch(choice.entry, DispatchState.CANCELLED, SUSPENDED)
    key = choice.entry.name.key
    return PlannedDispatch(
        choice.entry,
        _DISPATCH_STATES[choice.verdict],
        choice.reason,
        concerned=True if key in facts.dispatched else None,
        downgraded=key in facts.downgraded,
    )


_DISPATCH_STATES = {
    SelectionVerdict.DISPATCH: DispatchState.WAITING,
    SelectionVerdict.HOLD: DispatchState.HELD,
    SelectionVerdict.NOT_CONCERNED: DispatchState.LEFT_OUT,
}


def _held_in_doubt(dispatch: PlannedDispatch) -> PlannedDispatch:
    """Hold a waiting dispatch. One held for another reason stays held: the end of the doubt must not release it."""
    if dispatch.state is not DispatchState.WAITING:
        return dispatch
    return replace(dispatch, state=DispatchState.HELD, reason=HEAD_IN_DOUBT)


def _stale_reason(event: PullRequestEvent, known: KnownPull | None) -> str:
    if known is not None and not known.is_open and event.is_open:
        return "the pull request was closed since"
    if known is not None and known.head_sha != event.head_sha:
        return f"older than the known head {known.head_sha[:12]}"
    return "older than the recorded state of the pull request"
