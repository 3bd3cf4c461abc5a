"""The rules of a pair: the heads that are accepted, and the next dispatch."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.model import DispatchState
from crcr.decide.pairs.pair import (
    READ_LATEST,
    READ_SOONEST,
    RETEST_FOR,
    DependencyState,
    HeadReview,
    LinkedPull,
    PairFacts,
    PairStep,
    PlainDispatch,
    Refusal,
    approvers,
    judge_dependency,
    next_read_after,
    next_step,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAD, OLD = "a" * 40, "b" * 40
PULL = LinkedPull(
    repository_id=1,
    head_sha=HEAD,
    clone_url="https://github.com/stranger/x.git",
    is_own_head=False,
    is_open=True,
    merged=False,
    author="stranger",
    body="",
)


@pytest.mark.parametrize(
    ("facts", "approved_by", "state", "refusal"),
    [
        ({"is_own_head": True}, None, "open", None),
        ({}, "owner", "open", None),
        ({}, None, "open", Refusal.NOT_APPROVED),
        ({"clone_url": None}, "owner", "open", Refusal.HEAD_GONE),
        ({"is_open": False, "merged": True}, None, "merged", None),
        ({"is_open": False}, None, "closed", None),
    ],
)
def test_a_head_is_accepted_from_the_repository_itself_or_when_approved(
    facts: dict[str, Any], approved_by: str | None, state: str, refusal: Refusal | None
) -> None:
    dependency = judge_dependency(replace(PULL, **facts), approved_by=approved_by, in_cycle=False)
    assert (dependency.state, dependency.refusal) == (state, refusal)
    assert (
        judge_dependency(replace(PULL, **facts), approved_by=approved_by, in_cycle=True).refusal
        is Refusal.CYCLE
    )


def review(user: str = "owner", **facts: Any) -> HeadReview:
    return HeadReview(**{"who": user, "is_person": True, "approves": True, "commit": HEAD, **facts})


@pytest.mark.parametrize(
    ("reviews", "names"),
    [
        ([review()], ["owner"]),
        ([review(commit=OLD)], []),
        ([review(commit=None)], []),
        ([review(), review("Owner", approves=False)], []),
        ([review(approves=False), review("Owner")], ["Owner"]),
        ([review("bot", is_person=False)], []),
        ([review("Stranger")], []),
        ([review("one"), review("two")], ["one", "two"]),
    ],
)
def test_only_the_newest_review_of_each_other_person_counts_and_only_for_its_head(
    reviews: list[HeadReview], names: list[str]
) -> None:
    assert list(approvers(PULL, tuple(reviews))) == names


PLAIN = PlainDispatch(delivery="plain", state=DispatchState.SENT, sent_at=NOW - timedelta(hours=1))
FAILED = replace(PLAIN, has_failed=True)
OPEN = PairFacts(is_open=True, state=DependencyState.OPEN, refusal=None, head_sha=HEAD, plain=PLAIN)
SENT = replace(OPEN, sent_with=("plain", HEAD, 0))
MERGED = replace(SENT, state=DependencyState.MERGED, plain=FAILED, merged_seen_at=NOW)


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (OPEN, PairStep.SEND),
        (replace(OPEN, plain=replace(PLAIN, state=DispatchState.WAITING)), PairStep.SEND),
        (SENT, PairStep.NOTHING),
        (replace(SENT, head_sha=OLD), PairStep.SEND),
        (replace(SENT, plain=replace(PLAIN, delivery="newer")), PairStep.SEND),
        (replace(SENT, round=1), PairStep.SEND),
        (replace(SENT, refusal=Refusal.NOT_APPROVED), PairStep.DROP),
        (replace(SENT, is_open=False), PairStep.DROP),
        (replace(SENT, state=DependencyState.CLOSED), PairStep.DROP),
        (replace(OPEN, refusal=Refusal.CYCLE), PairStep.NOTHING),
        (replace(OPEN, state=DependencyState.UNREAD), PairStep.NOTHING),
        (replace(OPEN, plain=None), PairStep.NOTHING),
        *(
            (replace(OPEN, plain=replace(PLAIN, state=state)), PairStep.NOTHING)
            for state in DispatchState
            if state not in {DispatchState.WAITING, DispatchState.SENT}
        ),
        (MERGED, PairStep.SEND_PLAIN_AGAIN),
        (replace(MERGED, retested="older"), PairStep.SEND_PLAIN_AGAIN),
        (replace(MERGED, retested="plain"), PairStep.DROP),
        (replace(MERGED, plain=PLAIN), PairStep.DROP),
        (replace(MERGED, plain=replace(FAILED, sent_at=NOW + timedelta(seconds=1))), PairStep.DROP),
        (replace(MERGED, plain=replace(FAILED, state=DispatchState.WAITING)), PairStep.DROP),
        (replace(MERGED, is_open=False), PairStep.DROP),
        (replace(MERGED, merged_seen_at=NOW - RETEST_FOR), PairStep.DROP),
    ],
)
def test_the_next_step_follows_from_the_recorded_facts(facts: PairFacts, step: PairStep) -> None:
    assert next_step(facts, NOW) is step


@pytest.mark.parametrize(
    ("age", "wait"),
    [
        (timedelta(0), READ_SOONEST),
        (timedelta(hours=10), timedelta(hours=1)),
        (timedelta(days=90), READ_LATEST),
        (timedelta(days=-90), READ_SOONEST),
    ],
)
def test_an_unchanged_pull_request_is_read_less_often(age: timedelta, wait: timedelta) -> None:
    assert next_read_after(NOW - age, NOW) == wait
