"""The plan for an upstream event: entries that get a dispatch, that are held, that are dropped."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, Authors
from crcr.decide.dispatch.ordering import move_head
from crcr.decide.dispatch.plan import (
    BASE_CHANGED,
    HEAD_IN_DOUBT,
    DispatchPlan,
    Drop,
    IgnoredEvent,
    UpstreamFacts,
    plan_dispatches,
)
from crcr.decide.dispatch.selection import DISPATCHED_ACTIONS
from crcr.decide.events import PullRequestEvent, PushEvent
from crcr.decide.model import DeliveryState, DispatchState, KnownPull, Level, RepoName
from support.data.events_and_reports import a_pull, a_push

T = datetime(2026, 9, 1, tzinfo=UTC)
LATER = T + timedelta(seconds=1)
PULL = a_pull(upstream=RepoName("pytorch/pytorch"), updated_at=T)
PUSH = a_push(upstream=PULL.upstream)
OPEN = move_head(PULL, None)
CLOSED = move_head(replace(PULL, action="closed", is_open=False, updated_at=LATER), OPEN)
DOUBTFUL = replace(PULL, action="synchronize", head_sha="d" * 40, before="c" * 40)


def entry(name: str, **options: Any) -> AllowlistEntry:
    return AllowlistEntry(name=RepoName(name), level=Level.L2, **options)


PLAIN, NO_DRAFTS, APPROVED = (
    entry("org/plain"),
    entry("org/no-drafts", drafts=False),
    entry("org/approved", authors=Authors.APPROVED),
)


def facts(
    *entries: AllowlistEntry, pull: KnownPull | None = None, suspended: frozenset[str] = frozenset()
) -> UpstreamFacts:
    return UpstreamFacts(
        allowlist=Allowlist(entries or (PLAIN,)),
        ignore_refs=("refs/heads/gh/**",),
        suspended=suspended,
        pull=pull,
    )


def make_plan(event: PullRequestEvent | PushEvent, upstream_facts: UpstreamFacts) -> DispatchPlan:
    plan = plan_dispatches(event, upstream_facts)
    assert isinstance(plan, DispatchPlan)
    return plan


def dispatch_states(plan: DispatchPlan) -> dict[str, tuple[DispatchState, str | None]]:
    return {str(dispatch.entry.name): (dispatch.state, dispatch.reason) for dispatch in plan.dispatches}


SENT = (DispatchState.WAITING, None)
HELD_AS_DRAFT = (DispatchState.HELD, "draft")
HELD_FOR_APPROVAL = (DispatchState.HELD, "approval")
HELD_IN_DOUBT = (DispatchState.HELD, HEAD_IN_DOUBT)


@pytest.mark.parametrize("action", sorted(DISPATCHED_ACTIONS))
def test_an_event_about_the_head_is_dispatched_and_moves_the_head(action: str) -> None:
    event = replace(PULL, action=action, is_open=action != "closed", updated_at=LATER)
    plan = make_plan(event, facts(pull=OPEN))

    assert (plan.state, dispatch_states(plan)) == (DeliveryState.ACCEPTED, {"org/plain": SENT})
    assert plan.pull is not None
    assert (plan.pull.head_at, plan.pull.is_open) == (LATER, action != "closed")
    assert plan.drop is (Drop.ALL_BUT_CLOSED if action == "closed" else Drop.OLDER_HEADS)


@pytest.mark.parametrize("action", sorted(DISPATCHED_ACTIONS))
def test_an_event_older_than_the_known_head_is_superseded_and_changes_nothing(action: str) -> None:
    event = replace(PULL, action=action, head_sha="0" * 40, updated_at=T - timedelta(seconds=1))
    plan = make_plan(event, facts(pull=OPEN))

    assert (plan.state, plan.dispatches, plan.pull) == (DeliveryState.SUPERSEDED, (), None)
    assert (plan.drop, plan.reason) == (Drop.NONE, "older than the known head aaaaaaaaaaaa")


def test_an_event_older_than_the_closing_has_the_reason_closed_since() -> None:
    plan = make_plan(replace(PULL, action="synchronize"), facts(pull=CLOSED))

    assert plan.reason == "the pull request was closed since"


def test_a_draft_is_held_for_entries_without_drafts_and_for_entries_that_need_approval() -> None:
    plan = make_plan(replace(PULL, draft=True), facts(PLAIN, NO_DRAFTS, APPROVED))

    assert dispatch_states(plan) == {
        "org/plain": SENT,
        "org/no-drafts": HELD_AS_DRAFT,
        "org/approved": HELD_FOR_APPROVAL,
    }


def test_in_doubt_every_dispatch_is_held_and_other_holds_keep_their_reason() -> None:
    plan = make_plan(replace(DOUBTFUL, draft=True), facts(PLAIN, NO_DRAFTS, APPROVED, pull=OPEN))

    assert (plan.state, plan.pull, plan.drop) == (DeliveryState.IN_DOUBT, None, Drop.NONE)
    assert dispatch_states(plan) == {
        "org/plain": HELD_IN_DOUBT,
        "org/no-drafts": HELD_AS_DRAFT,
        "org/approved": HELD_FOR_APPROVAL,
    }


@pytest.mark.parametrize("event", [PULL, PUSH, DOUBTFUL], ids=["pull request", "push", "doubt"])
def test_a_suspended_downstream_is_left_out(event: PullRequestEvent | PushEvent) -> None:
    upstream_facts = facts(PLAIN, NO_DRAFTS, pull=OPEN, suspended=frozenset({"org/plain"}))
    plan = make_plan(replace(event, updated_at=LATER) if event is PULL else event, upstream_facts)

    assert list(dispatch_states(plan)) == ["org/no-drafts"]


@pytest.mark.parametrize(
    "action", ["labeled", "unlabeled", "edited", "ready_for_review", "converted_to_draft"]
)
def test_other_events_are_recorded_dispatch_nothing_and_reconsider_held_dispatches(action: str) -> None:
    draft = action == "converted_to_draft"
    plan = make_plan(replace(PULL, action=action, draft=draft, updated_at=LATER), facts(pull=OPEN))

    assert (plan.state, plan.dispatches, plan.drop) == (DeliveryState.ACCEPTED, (), Drop.NONE)
    assert plan.reconsiders_held
    assert plan.pull is not None
    assert (plan.pull.head_at, plan.pull.updated_at) == (T, LATER)


def test_an_old_label_event_is_superseded() -> None:
    old = replace(PULL, action="labeled", updated_at=T - timedelta(seconds=1))

    assert make_plan(old, facts(pull=OPEN)).state is DeliveryState.SUPERSEDED


def test_an_opened_event_that_arrives_after_ready_for_review_is_not_held_as_a_draft() -> None:
    known = make_plan(replace(PULL, action="ready_for_review", updated_at=LATER), facts()).pull
    plan = make_plan(replace(PULL, draft=True), facts(NO_DRAFTS, pull=known))

    assert dispatch_states(plan) == {"org/no-drafts": SENT}


def test_a_push_is_dispatched_including_deletions() -> None:
    gone = replace(PUSH, deleted=True, after="0" * 40)

    assert (
        dispatch_states(make_plan(PUSH, facts()))
        == dispatch_states(make_plan(gone, facts()))
        == {"org/plain": SENT}
    )


@pytest.mark.parametrize(
    ("event", "entries"),
    [
        (replace(PUSH, ref="refs/heads/gh/ann/1/head"), (PLAIN,)),
        (PUSH, (entry("org/other", refs=("release/*",)),)),
        (PUSH, (entry("org/nightly", events=frozenset({"nightly"})),)),
    ],
    ids=["ignored ref", "other refs", "other events"],
)
def test_a_push_that_no_entry_takes_is_ignored_with_a_reason(
    event: PushEvent, entries: tuple[AllowlistEntry, ...]
) -> None:
    assert plan_dispatches(event, facts(*entries)) == IgnoredEvent(
        f"no downstream takes pushes to {event.ref}"
    )


def test_a_pull_request_that_no_entry_takes_is_still_tracked() -> None:
    plan = make_plan(PULL, facts(entry("org/labelled", labels=("npu",))))

    assert [(dispatch.state, dispatch.reason) for dispatch in plan.dispatches] == [
        (DispatchState.LEFT_OUT, "labels")
    ]
    assert plan.pull == OPEN


# Another base

ON_STACK = replace(PULL, action="edited", base_ref="stack", updated_at=LATER, changes_base=True)


@pytest.mark.parametrize(
    "action", ["edited", "labeled", "unlabeled", "ready_for_review", "converted_to_draft"]
)
def test_any_event_with_another_base_is_dispatched_as_a_new_head(action: str) -> None:
    event = replace(ON_STACK, action=action, changes_base=action == "edited")
    plan = make_plan(event, facts(PLAIN, pull=OPEN))

    assert dispatch_states(plan) == {"org/plain": SENT}
    assert (plan.relay_reason, plan.sent_as, plan.drop) == (BASE_CHANGED, "synchronize", Drop.OLDER_HEADS)
    assert plan.pull is not None
    assert (plan.pull.base_ref, plan.pull.head_at) == ("stack", LATER)


def test_a_push_with_another_base_has_the_reason_base_changed() -> None:
    push = replace(
        ON_STACK, action="synchronize", head_sha="e" * 40, before=PULL.head_sha, changes_base=False
    )
    plan = make_plan(push, facts(pull=OPEN))

    assert (plan.relay_reason, plan.sent_as) == (BASE_CHANGED, None)
    assert make_plan(replace(push, base_ref=PULL.base_ref), facts(pull=OPEN)).relay_reason is None
    assert make_plan(replace(push, base_ref=PULL.base_ref), facts(pull=None)).relay_reason is None


def test_two_bases_within_one_second_are_in_doubt_but_the_labels_are_applied() -> None:
    event = replace(ON_STACK, action="labeled", updated_at=T, labels=("npu",), changes_base=False)
    plan = make_plan(event, facts(pull=OPEN))

    assert (plan.state, plan.relay_reason) == (DeliveryState.IN_DOUBT, BASE_CHANGED)
    assert dispatch_states(plan) == {"org/plain": (DispatchState.HELD, HEAD_IN_DOUBT)}
    assert plan.pull is not None
    assert (plan.pull.base_ref, plan.pull.labels) == (PULL.base_ref, ("npu",))


def test_the_first_event_with_a_base_known_only_from_github_is_dispatched_however_late() -> None:
    known = replace(OPEN, base_ref="stack", updated_at=LATER + timedelta(hours=1))
    late = replace(ON_STACK, changes_base=False)

    assert make_plan(late, facts(pull=known)).state is DeliveryState.SUPERSEDED
    plan = make_plan(late, replace(facts(pull=known), base_lacks_delivery=True))
    assert (dispatch_states(plan), plan.sent_as) == ({"org/plain": SENT}, "synchronize")
    assert plan.pull is not None
    assert (plan.pull.base_ref, plan.pull.updated_at) == ("stack", known.updated_at)


def test_a_closed_pull_request_is_not_dispatched_for_another_base() -> None:
    plan = make_plan(replace(ON_STACK, is_open=False), facts(pull=CLOSED))

    assert (plan.dispatches, plan.relay_reason) == ((), None)


def test_a_removed_label_does_not_leave_out_a_downstream_dispatched_for_the_head() -> None:
    reopened = replace(PULL, action="reopened", updated_at=LATER)
    labelled = entry("org/labelled", labels=("npu",), paths=("aten/**",))
    upstream_facts = facts(labelled, pull=OPEN)

    assert dispatch_states(make_plan(reopened, upstream_facts)) == {
        "org/labelled": (DispatchState.LEFT_OUT, "labels")
    }
    kept = make_plan(reopened, replace(upstream_facts, dispatched=frozenset({"org/labelled"})))
    assert dispatch_states(kept) == {"org/labelled": SENT}
