"""Fault 7: the webhooks of GitHub's log that are recovered, and their order."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.dispatch.ordering import EventOrder, move_head, order_head
from crcr.decide.events import USED_ACTIONS, PullRequestEvent
from crcr.decide.github.missed_webhooks import (
    LOG_KEPT,
    MOST_IN_TREE,
    OVERLAP,
    KnownWebhooks,
    group_attempts,
    is_used_event,
    missing_webhooks,
    possibly_missing,
    read_since,
)
from crcr.decide.github.requests_and_answers import LoggedDelivery
from crcr.decide.model import KnownPull
from support.data.events_and_reports import NOW, a_pull

UPSTREAM_ID, OTHER_ID = 1, 2


def entry(
    guid: str = "g", event: str = "pull_request", *, at: int = 0, ok: bool = False, **more: object
) -> LoggedDelivery:
    delivery = LoggedDelivery(
        log_id=1000 + at,
        guid=guid,
        delivered_at=NOW + timedelta(seconds=at),
        redelivery=False,
        ok=ok,
        event=event,
        action="opened",
        repository_id=UPSTREAM_ID,
    )
    return replace(delivery, **more)  # type: ignore[arg-type]  # fields of the caller


def missing_guids(
    *entries: LoggedDelivery, known: KnownWebhooks | None = None, ids: frozenset[int] | None = None
) -> list[str]:
    webhooks = possibly_missing(group_attempts(filter(is_used_event, entries)), ids)
    return [webhook.guid for webhook in missing_webhooks(webhooks, known or KnownWebhooks())]


FAILED, PUSHED = entry(), entry(event="push", action=None)
RULES = {
    "failed and unknown": ((FAILED,), KnownWebhooks(), ["g"]),
    "failed, but taken: only the answer was lost": ((FAILED,), KnownWebhooks(taken=frozenset("g")), []),
    "failed and recovered before": ((FAILED,), KnownWebhooks(recovered=frozenset("g")), []),
    "failed, then redelivered by hand": (
        (PUSHED, replace(PUSHED, ok=True, redelivery=True)),
        KnownWebhooks(),
        [],
    ),
    "acknowledged, then redelivered and failed": ((replace(PUSHED, ok=True), PUSHED), KnownWebhooks(), []),
    "acknowledged pull request that is not here": ((replace(FAILED, ok=True),), KnownWebhooks(), ["g"]),
    "acknowledged pull request that is here": (
        (replace(FAILED, ok=True),),
        KnownWebhooks(taken=frozenset("g")),
        [],
    ),
    "acknowledged and ignored before": (
        (replace(FAILED, ok=True),),
        KnownWebhooks(recovered=frozenset("g")),
        [],
    ),
    "acknowledged push: it may have been ignored": ((replace(PUSHED, ok=True),), KnownWebhooks(), []),
    "an event that we do not use": ((entry(event="star", action="created"),), KnownWebhooks(), []),
    "an action that we do not use": ((replace(FAILED, action="assigned"),), KnownWebhooks(), []),
    "a check of the upstream's own CI": (
        (entry(event="check_run", action="completed"),),
        KnownWebhooks(),
        ["g"],
    ),
    "an acknowledged one": ((entry(event="check_run", action="completed", ok=True),), KnownWebhooks(), []),
    "a ping": ((entry(event="ping", action=None),), KnownWebhooks(), []),
}


@pytest.mark.parametrize("case", RULES)
def test_a_webhook_is_recovered_if_it_is_missing(case: str) -> None:
    entries, known, expected = RULES[case]
    assert missing_guids(*entries, known=known) == expected


@pytest.mark.parametrize("event", sorted({*USED_ACTIONS, "push", "status"}))
def test_every_event_that_the_relay_knows_is_recovered(event: str) -> None:
    for action in USED_ACTIONS.get(event, [None]):  # a push has none, nor has a status
        assert missing_guids(entry(event=event, action=action)) == ["g"]


@pytest.mark.parametrize("ok", [False, True])
def test_pull_requests_of_non_upstream_repositories_cost_no_call(ok: bool) -> None:
    foreign = entry(repository_id=OTHER_ID, ok=ok)
    assert missing_guids(foreign, ids=frozenset({UPSTREAM_ID})) == []
    assert missing_guids(foreign, ids=None) == [
        "g"
    ]  # an upstream whose id is not known yet may be any of them
    assert missing_guids(replace(foreign, repository_id=UPSTREAM_ID), ids=frozenset({UPSTREAM_ID})) == ["g"]


def test_runs_of_downstreams_are_recovered_although_they_are_no_upstream() -> None:
    run = entry(event="workflow_run", action="completed", repository_id=OTHER_ID)
    assert missing_guids(run, ids=frozenset({UPSTREAM_ID})) == ["g"]


def test_the_payload_is_read_from_the_newest_attempt_and_the_order_is_that_of_the_first() -> None:
    first, redelivered = entry(at=1), replace(entry(at=9), redelivery=True)
    [webhook] = group_attempts([redelivered, first])
    assert (webhook.first_at, webhook.log_id) == (first.delivered_at, redelivered.log_id)


def test_of_many_missed_in_tree_checks_only_the_newest_are_recovered() -> None:
    missed = [entry(f"c{at}", "check_run", at=at, action="completed") for at in range(MOST_IN_TREE + 5)]
    recovered = missing_guids(*missed, entry("push", "push", at=3, action=None))
    assert (recovered[0], recovered[1], len(recovered)) == ("push", f"c{MOST_IN_TREE + 4}", 1 + MOST_IN_TREE)


def test_checks_of_non_upstream_repositories_cost_no_call() -> None:
    foreign = entry(event="check_run", action="completed", repository_id=OTHER_ID)
    assert missing_guids(foreign, ids=frozenset({UPSTREAM_ID})) == []


def test_installations_come_first_then_pull_requests_newest_first_then_the_rest_oldest_first() -> None:
    entries = [
        entry("comment", "issue_comment", at=1, action="created"),
        entry("old pull", at=2),
        entry("push", "push", at=3, action=None),
        entry("moved", "repository", at=4, action="renamed"),
        entry("check", "check_run", at=5, action="rerequested"),
        entry("old in-tree check", "check_run", at=0, action="completed"),
        entry("new in-tree status", "status", at=8, action=None),
        entry("new pull", at=6),
        entry("installed", "installation", at=7, action="created"),
    ]
    expected = ["moved", "installed", "new pull", "old pull", "comment", "push", "check"]
    expected += ["new in-tree status", "old in-tree check"]
    assert missing_guids(*entries) == missing_guids(*reversed(entries)) == expected


def test_the_log_is_read_back_to_the_watermark_plus_overlap_within_its_retention() -> None:
    assert read_since(NOW, None) == NOW - LOG_KEPT
    assert read_since(NOW, NOW - timedelta(hours=1)) == NOW - timedelta(hours=1) - OVERLAP
    assert read_since(NOW, NOW - timedelta(days=30)) == NOW - LOG_KEPT


# Collapsing a backlog


@st.composite
def histories(draw: st.DrawFn) -> list[PullRequestEvent]:
    """Draw the events of a few pull requests, each event in a second of its own."""
    numbers = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    latest: dict[int, PullRequestEvent] = {}
    events = []
    for second, number in enumerate(numbers):
        before = latest.get(number)
        action = "opened" if before is None else draw(st.sampled_from(["synchronize", "closed", "reopened"]))
        head = before.head_sha if before and action != "synchronize" else f"{second:040}"
        latest[number] = a_pull(
            number=number,
            action=action,
            head_sha=head,
            before=before.head_sha if before and action == "synchronize" else None,
            is_open=action != "closed",
            updated_at=NOW + timedelta(seconds=second),
        )
        events.append(latest[number])
    return events


@given(histories(), st.randoms(use_true_random=False))
def test_of_a_backlog_only_the_newest_event_of_each_pull_request_moves_its_head(
    events: list[PullRequestEvent], random: Random
) -> None:
    entries = [entry(str(at), at=at, action=event.action) for at, event in enumerate(events)]
    random.shuffle(entries)
    pulls: dict[int, KnownPull] = {}
    moved = []
    for guid in missing_guids(*entries):
        event = events[int(guid)]
        if order_head(event, pulls.get(event.number)) is EventOrder.NEWER:
            pulls[event.number] = move_head(event, pulls.get(event.number))
            moved.append(event)
    newest = {event.number: event for event in events}
    assert sorted(moved, key=lambda event: event.number) == [newest[number] for number in sorted(newest)]


@given(
    st.lists(st.tuples(st.sampled_from(sorted(USED_ACTIONS)), st.integers(0, 9), st.booleans()), max_size=20)
)
def test_each_guid_is_recovered_at_most_once_regardless_of_its_attempts(
    attempts: list[tuple[str, int, bool]],
) -> None:
    entries = [
        entry(f"{event} {number}", event, at=at, ok=ok, action=min(USED_ACTIONS[event]))
        for at, (event, number, ok) in enumerate(attempts)
    ]
    recovered = missing_guids(*entries)
    acknowledged = {delivery.guid for delivery in entries if delivery.ok and delivery.event != "pull_request"}
    assert len(recovered) == len(set(recovered))
    assert set(recovered) == {delivery.guid for delivery in entries} - acknowledged
