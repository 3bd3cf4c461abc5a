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


def planned(event: PullRequestEvent | PushEvent, given: UpstreamFacts) -> DispatchPlan:
    made = plan_dispatches(event, given)
    assert isinstance(made, DispatchPlan)
    return made


def waiting_for(made: DispatchPlan) -> dict[str, tuple[DispatchState, str | None]]:
    return {str(each.entry.name): (each.state, each.reason) for each in made.dispatches}


SENT = (DispatchState.WAITING, None)
HELD_AS_DRAFT = (DispatchState.HELD, "draft")
HELD_FOR_APPROVAL = (DispatchState.HELD, "approval")
HELD_IN_DOUBT = (DispatchState.HELD, HEAD_IN_DOUBT)


@pytest.mark.parametrize("action", sorted(DISPATCHED_ACTIONS))
def test_an_event_about_the_head_is_told_and_moves_the_head(action: str) -> None:
    event = replace(PULL, action=action, is_open=action != "closed", updated_at=LATER)
    made = planned(event, facts(pull=OPEN))

    assert (made.state, waiting_for(made)) == (DeliveryState.ACCEPTED, {"org/plain": SENT})
    assert made.pull is not None
    assert (made.pull.head_at, made.pull.is_open) == (LATER, action != "closed")
    assert made.drop is (Drop.ALL_BUT_CLOSED if action == "closed" else Drop.OLDER_HEADS)


@pytest.mark.parametrize("action", sorted(DISPATCHED_ACTIONS))
def test_an_event_before_the_known_head_is_superseded_and_changes_nothing(action: str) -> None:
    event = replace(PULL, action=action, head_sha="0" * 40, updated_at=T - timedelta(seconds=1))
    made = planned(event, facts(pull=OPEN))

    assert (made.state, made.dispatches, made.pull) == (DeliveryState.SUPERSEDED, (), None)
    assert (made.drop, made.reason) == (Drop.NONE, "older than the known head aaaaaaaaaaaa")


def test_an_event_before_the_closing_says_that_it_was_closed_since() -> None:
    made = planned(replace(PULL, action="synchronize"), facts(pull=CLOSED))

    assert made.reason == "the pull request was closed since"


def test_a_draft_is_held_where_drafts_are_not_wanted_and_approval_everywhere_it_is_asked() -> None:
    made = planned(replace(PULL, draft=True), facts(PLAIN, NO_DRAFTS, APPROVED))

    assert waiting_for(made) == {
        "org/plain": SENT,
        "org/no-drafts": HELD_AS_DRAFT,
        "org/approved": HELD_FOR_APPROVAL,
    }


def test_in_doubt_all_is_held_and_what_waits_for_something_else_goes_on_waiting_for_that() -> None:
    made = planned(replace(DOUBTFUL, draft=True), facts(PLAIN, NO_DRAFTS, APPROVED, pull=OPEN))

    assert (made.state, made.pull, made.drop) == (DeliveryState.IN_DOUBT, None, Drop.NONE)
    assert waiting_for(made) == {
        "org/plain": HELD_IN_DOUBT,
        "org/no-drafts": HELD_AS_DRAFT,
        "org/approved": HELD_FOR_APPROVAL,
    }


@pytest.mark.parametrize("event", [PULL, PUSH, DOUBTFUL], ids=["pull request", "push", "doubt"])
def test_a_suspended_downstream_is_left_out(event: PullRequestEvent | PushEvent) -> None:
    given = facts(PLAIN, NO_DRAFTS, pull=OPEN, suspended=frozenset({"org/plain"}))
    made = planned(replace(event, updated_at=LATER) if event is PULL else event, given)

    assert list(waiting_for(made)) == ["org/no-drafts"]


@pytest.mark.parametrize(
    "action", ["labeled", "unlabeled", "edited", "ready_for_review", "converted_to_draft"]
)
def test_other_events_are_recorded_tell_nobody_and_have_what_is_held_looked_at_again(action: str) -> None:
    draft = action == "converted_to_draft"
    made = planned(replace(PULL, action=action, draft=draft, updated_at=LATER), facts(pull=OPEN))

    assert (made.state, made.dispatches, made.drop) == (DeliveryState.ACCEPTED, (), Drop.NONE)
    assert made.reconsiders_held
    assert made.pull is not None
    assert (made.pull.head_at, made.pull.updated_at) == (T, LATER)


def test_an_old_label_is_superseded() -> None:
    old = replace(PULL, action="labeled", updated_at=T - timedelta(seconds=1))

    assert planned(old, facts(pull=OPEN)).state is DeliveryState.SUPERSEDED


def test_an_opening_that_its_ready_for_review_overtook_is_no_draft_any_more() -> None:
    known = planned(replace(PULL, action="ready_for_review", updated_at=LATER), facts()).pull
    made = planned(replace(PULL, draft=True), facts(NO_DRAFTS, pull=known))

    assert waiting_for(made) == {"org/no-drafts": SENT}


def test_a_push_is_told_deletions_included() -> None:
    gone = replace(PUSH, deleted=True, after="0" * 40)

    assert waiting_for(planned(PUSH, facts())) == waiting_for(planned(gone, facts())) == {"org/plain": SENT}


@pytest.mark.parametrize(
    ("event", "entries"),
    [
        (replace(PUSH, ref="refs/heads/gh/ann/1/head"), (PLAIN,)),
        (PUSH, (entry("org/other", refs=("release/*",)),)),
        (PUSH, (entry("org/nightly", events=frozenset({"nightly"})),)),
    ],
    ids=["ignored ref", "other refs", "other events"],
)
def test_a_push_that_nobody_takes_is_ignored_with_a_reason(
    event: PushEvent, entries: tuple[AllowlistEntry, ...]
) -> None:
    assert plan_dispatches(event, facts(*entries)) == IgnoredEvent(
        f"no downstream takes pushes to {event.ref}"
    )


def test_a_pull_request_that_nobody_takes_is_still_followed() -> None:
    made = planned(PULL, facts(entry("org/labelled", labels=("npu",))))

    assert [(each.state, each.reason) for each in made.dispatches] == [(DispatchState.LEFT_OUT, "labels")]
    assert made.pull == OPEN


# Another base

ON_STACK = replace(PULL, action="edited", base_ref="stack", updated_at=LATER, changes_base=True)


@pytest.mark.parametrize(
    "action", ["edited", "labeled", "unlabeled", "ready_for_review", "converted_to_draft"]
)
def test_whatever_tells_of_another_base_is_dispatched_as_a_new_head(action: str) -> None:
    event = replace(ON_STACK, action=action, changes_base=action == "edited")
    made = planned(event, facts(PLAIN, pull=OPEN))

    assert waiting_for(made) == {"org/plain": SENT}
    assert (made.relay_reason, made.sent_as, made.drop) == (BASE_CHANGED, "synchronize", Drop.OLDER_HEADS)
    assert made.pull is not None
    assert (made.pull.base_ref, made.pull.head_at) == ("stack", LATER)


def test_a_push_to_another_base_says_why_it_is_more_than_a_push() -> None:
    push = replace(
        ON_STACK, action="synchronize", head_sha="e" * 40, before=PULL.head_sha, changes_base=False
    )
    made = planned(push, facts(pull=OPEN))

    assert (made.relay_reason, made.sent_as) == (BASE_CHANGED, None)
    assert planned(replace(push, base_ref=PULL.base_ref), facts(pull=OPEN)).relay_reason is None
    assert planned(replace(push, base_ref=PULL.base_ref), facts(pull=None)).relay_reason is None


def test_two_bases_of_one_second_are_in_doubt_and_the_labels_are_not() -> None:
    event = replace(ON_STACK, action="labeled", updated_at=T, labels=("npu",), changes_base=False)
    made = planned(event, facts(pull=OPEN))

    assert (made.state, made.relay_reason) == (DeliveryState.IN_DOUBT, BASE_CHANGED)
    assert waiting_for(made) == {"org/plain": (DispatchState.HELD, HEAD_IN_DOUBT)}
    assert made.pull is not None
    assert (made.pull.base_ref, made.pull.labels) == (PULL.base_ref, ("npu",))


def test_the_first_event_of_a_base_that_only_github_told_of_is_dispatched_however_late() -> None:
    known = replace(OPEN, base_ref="stack", updated_at=LATER + timedelta(hours=1))
    late = replace(ON_STACK, changes_base=False)

    assert planned(late, facts(pull=known)).state is DeliveryState.SUPERSEDED
    made = planned(late, replace(facts(pull=known), base_lacks_delivery=True))
    assert (waiting_for(made), made.sent_as) == ({"org/plain": SENT}, "synchronize")
    assert made.pull is not None
    assert (made.pull.base_ref, made.pull.updated_at) == ("stack", known.updated_at)


def test_a_closed_pull_request_is_dispatched_for_no_base() -> None:
    made = planned(replace(ON_STACK, is_open=False), facts(pull=CLOSED))

    assert (made.dispatches, made.relay_reason) == ((), None)


def test_who_was_dispatched_for_the_head_is_left_out_by_no_label_that_went() -> None:
    again = replace(PULL, action="reopened", updated_at=LATER)
    labelled = entry("org/labelled", labels=("npu",), paths=("aten/**",))
    given = facts(labelled, pull=OPEN)

    assert waiting_for(planned(again, given)) == {"org/labelled": (DispatchState.LEFT_OUT, "labels")}
    kept = planned(again, replace(given, dispatched=frozenset({"org/labelled"})))
    assert waiting_for(kept) == {"org/labelled": SENT}
