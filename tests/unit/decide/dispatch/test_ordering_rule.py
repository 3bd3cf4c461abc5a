"""The order of an event in its pull request's history: by date, by the chain of heads, or unknown."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.dispatch.ordering import (
    EventOrder,
    agrees_with_github,
    apply_github_answer,
    move_head,
    order_base,
    order_head,
    update_details,
    with_newest_details,
)
from crcr.decide.events import PullRequestEvent
from crcr.decide.github.requests_and_answers import PullFacts
from crcr.decide.model import KnownPull
from support.data.events_and_reports import a_pull

T = datetime(2026, 9, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
A, B, C, D = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
EVENT = a_pull(action="synchronize", head_sha=B, before=A, updated_at=T, labels=("new",), title="New title")
KNOWN = KnownPull(
    number=7,
    head_sha=B,
    previous_sha=A,
    head_at=T,
    updated_at=T,
    is_open=True,
    draft=True,
    labels=("old",),
    base_ref="main",
    title="Old title",
    author="ann",
)


def an_event(action: str, head: str, **more: Any) -> PullRequestEvent:
    before = more.pop("before", None)
    return replace(EVENT, action=action, head_sha=head, before=before, is_open=action != "closed", **more)


def sync(before: str, head: str, **more: Any) -> PullRequestEvent:
    return an_event("synchronize", head, before=before, **more)


OPEN_B = KNOWN
CLOSED_B = replace(KNOWN, is_open=False)
OPENED_A = replace(KNOWN, head_sha=A, previous_sha=None)
ONLY_LABELS = replace(KNOWN, head_at=None)


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "closed"])
@pytest.mark.parametrize("known", [None, ONLY_LABELS], ids=["nothing", "only labels"])
def test_the_first_event_about_the_head_is_newer(action: str, known: KnownPull | None) -> None:
    assert order_head(an_event(action, A), known) is EventOrder.NEWER


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "closed"])
@pytest.mark.parametrize("known", [OPEN_B, CLOSED_B], ids=["open", "closed"])
def test_events_at_least_a_second_apart_are_ordered_by_date(action: str, known: KnownPull) -> None:
    assert order_head(an_event(action, C, updated_at=T + SECOND), known) is EventOrder.NEWER
    assert order_head(an_event(action, C, updated_at=T - SECOND), known) is EventOrder.STALE


WITHIN_ONE_SECOND = {
    "the opening is the oldest event of all": (an_event("opened", A), OPEN_B, EventOrder.STALE),
    "the opening, its closing known": (an_event("opened", B), CLOSED_B, EventOrder.STALE),
    "the next link of the chain": (sync(B, C), OPEN_B, EventOrder.NEWER),
    "the first link": (sync(A, B), OPENED_A, EventOrder.NEWER),
    "the link before, or back to it by another way": (sync(D, A), OPEN_B, EventOrder.DOUBT),
    "no link at all": (sync(C, D), OPEN_B, EventOrder.DOUBT),
    "pushed back and forth": (sync(B, A), OPEN_B, EventOrder.DOUBT),
    "the same head once more": (sync(A, B), OPEN_B, EventOrder.NEWER),
    "a push to what was closed": (sync(B, C), CLOSED_B, EventOrder.DOUBT),
    "the push before the closing": (sync(A, B), CLOSED_B, EventOrder.DOUBT),
    "a closing, perhaps before a reopening": (an_event("closed", B), OPEN_B, EventOrder.DOUBT),
    "a closing of another head": (an_event("closed", A), OPEN_B, EventOrder.DOUBT),
    "a second closing": (an_event("closed", B), CLOSED_B, EventOrder.DOUBT),
    "a reopening of the open": (an_event("reopened", B), OPEN_B, EventOrder.NEWER),
    "a reopening of the closed": (an_event("reopened", B), CLOSED_B, EventOrder.DOUBT),
}


@pytest.mark.parametrize("case", WITHIN_ONE_SECOND)
def test_events_within_one_second_are_ordered_by_the_chain_of_heads_or_in_doubt(case: str) -> None:
    event, known, expected = WITHIN_ONE_SECOND[case]

    assert order_head(event, known) is expected


def test_moving_the_head_keeps_the_previous_head() -> None:
    assert move_head(sync(A, B), None).previous_sha == A
    assert move_head(sync(A, B), OPENED_A).previous_sha == A
    assert move_head(sync(C, D), OPEN_B).previous_sha == B
    assert move_head(an_event("closed", B), OPEN_B).previous_sha == A
    assert move_head(an_event("closed", B), OPEN_B).is_open is False


def test_a_late_head_does_not_restore_old_labels() -> None:
    known = replace(OPEN_B, updated_at=T + 5 * SECOND)
    late = sync(B, C, updated_at=T + SECOND)
    moved = move_head(late, known)

    assert (moved.head_sha, moved.head_at, moved.updated_at) == (C, T + SECOND, T + 5 * SECOND)
    assert (moved.labels, moved.draft, moved.title) == (("old",), True, "Old title")
    assert with_newest_details(late, known).labels == ("old",)


def test_a_new_head_brings_its_own_labels() -> None:
    new = sync(B, C, updated_at=T + SECOND)

    assert with_newest_details(new, OPEN_B) is new
    assert move_head(new, OPEN_B).labels == ("new",)


def test_a_label_event_updates_everything_but_the_head() -> None:
    updated = update_details(an_event("labeled", C, updated_at=T + SECOND), OPEN_B)

    assert updated is not None
    assert (updated.head_sha, updated.head_at, updated.is_open) == (B, T, True)
    assert (updated.labels, updated.draft, updated.updated_at) == (("new",), False, T + SECOND)


def test_an_old_label_event_is_ignored_and_a_first_one_leaves_the_head_unknown() -> None:
    assert update_details(an_event("labeled", B, updated_at=T - SECOND), OPEN_B) is None
    first = update_details(an_event("labeled", B), None)
    assert first is not None
    assert first.head_at is None


@pytest.mark.parametrize(
    ("action", "head", "base", "is_open", "expected"),
    [
        ("synchronize", B, "main", True, True),
        ("synchronize", A, "main", True, False),
        ("synchronize", B, "stack", True, False),
        ("synchronize", B, "main", False, False),
        ("edited", B, "main", True, True),
        ("edited", B, "stack", True, False),
        ("closed", B, "main", False, True),
        ("closed", B, "stack", False, True),
        ("closed", B, "main", True, False),
        ("closed", A, "main", False, False),
    ],
)
def test_an_event_is_confirmed_if_githubs_head_base_and_state_agree(
    action: str, head: str, base: str, is_open: bool, expected: bool
) -> None:
    assert agrees_with_github(head, base, action, PullFacts(B, "main", is_open, T)) is expected


def test_the_answer_of_github_replaces_head_base_and_state() -> None:
    updated = apply_github_answer(OPEN_B, PullFacts(C, "stack", is_open=False, updated_at=T + 9 * SECOND))

    assert (updated.head_sha, updated.base_ref, updated.previous_sha, updated.is_open) == (
        C,
        "stack",
        B,
        False,
    )
    assert (updated.head_at, updated.labels) == (T + 9 * SECOND, ("old",))
    assert apply_github_answer(OPEN_B, PullFacts(B, "main", is_open=True, updated_at=T)).previous_sha == A


@pytest.mark.parametrize("late", [False, True])
def test_of_two_labels_set_within_one_second_none_is_lost_in_either_order(late: bool) -> None:
    one = replace(EVENT, action="labeled", labels=("bug",))
    both = replace(EVENT, action="labeled", labels=("bug", "ciflow/crcr/npu"))

    first, second = (both, one) if late else (one, both)
    after = update_details(second, update_details(first, None))
    assert after is not None
    assert after.labels == ("bug", "ciflow/crcr/npu")


ON_STACK = replace(EVENT, base_ref="stack")
RETARGETED = replace(ON_STACK, action="edited", before=None, changes_base=True)
BASES = {
    "the base that is known": (EVENT, OPEN_B, None),
    "another base later": (replace(ON_STACK, updated_at=T + SECOND), OPEN_B, EventOrder.NEWER),
    "another base earlier": (replace(ON_STACK, updated_at=T - SECOND), OPEN_B, EventOrder.STALE),
    "two bases of one second": (ON_STACK, OPEN_B, EventOrder.DOUBT),
    "two bases of one second, one said to be new": (RETARGETED, OPEN_B, EventOrder.DOUBT),
    "nothing is known": (ON_STACK, None, None),
    "nothing is known, and the base is said to be new": (RETARGETED, None, EventOrder.NEWER),
    "back from a base that nobody heard of": (
        replace(RETARGETED, base_ref="main", updated_at=T + SECOND),
        OPEN_B,
        EventOrder.NEWER,
    ),
    "the base that another event has told before": (replace(RETARGETED, base_ref="main"), OPEN_B, None),
}


@pytest.mark.parametrize("case", BASES)
def test_the_base_is_ordered_by_the_date_of_the_event_that_reported_it(case: str) -> None:
    event, known, expected = BASES[case]

    assert order_base(event, known) is expected


def test_a_late_head_does_not_restore_an_old_base() -> None:
    known = replace(OPEN_B, base_ref="stack", updated_at=T + 5 * SECOND)

    assert move_head(sync(B, C, updated_at=T + SECOND), known).base_ref == "stack"
    assert move_head(sync(B, C, updated_at=T + 9 * SECOND), known).base_ref == "main"
    assert update_details(an_event("labeled", B, updated_at=T + SECOND), known) is None
