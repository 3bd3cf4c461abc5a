"""Webhooks arrive late, twice and in any order; the last dispatch to a downstream is still the newest state."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from github_sim.github import GitHub, Match, PullRequest
from support.github.dispatch_log import (
    BOTH,
    TWO,
    dispatch_attempts,
    dispatched_actions,
    dispatched_events,
    row_states,
)
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

ONE = Match("POST", "/repos/org/one/dispatches")
PULL = "/repos/pytorch-like/core/pulls/1"


async def force_push_back(github: GitHub, pull: PullRequest, head: str) -> None:
    """Force-push an older commit."""
    before, pull.head_sha = pull.head_sha, head
    await github.send_pull_webhook(pull, "synchronize", {"before": before, "after": head})


def deliveries(relay: RunningRelay) -> dict[str, str]:
    """State of the deliveries by action, for actions that arrive once."""
    return {row["action"]: row["state"] for row in relay.rows("SELECT action, state FROM deliveries")}


async def open_push_and_close(relay: RunningRelay) -> PullRequest:
    """Open, push and close a pull request, a second apart; its webhooks are held."""
    relay.github.faults.webhooks.hold()
    pull = await relay.github.open_pr(UPSTREAM)
    relay.clock.advance(1)
    await relay.github.push_to_pr(pull)
    relay.clock.advance(1)
    return await relay.github.close_pr(pull)


async def test_events_of_one_pull_request_arrive_in_order_when_the_first_needs_retries(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=3)
        pr = await relay.github.open_pr(UPSTREAM)
        other = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.edit_pr(pr, title="A better title")
        await relay.github.reopen_pr(pr)  # a second event of the same head: it must not overtake the first
        await relay.drain()
        for _ in range(6):
            await relay.pass_time(10)

        assert [
            action for action, head in dispatched_events(relay.github, "org/one") if head == pr.head_sha
        ] == [
            "opened",
            "reopened",
        ]
        assert ("opened", other.head_sha) in dispatched_events(relay.github, "org/one")


async def test_a_new_head_supersedes_unsent_dispatches_of_older_heads(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.push_to_pr(pr)
        await relay.pass_time(60)

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]
        assert dispatched_actions(relay.github, "org/two") == ["opened", "synchronize"]
        [dropped] = relay.rows("SELECT reason FROM dispatches WHERE state = 'cancelled'")
        assert dropped["reason"] == f"superseded by {pr.head_sha[:12]}"


async def test_closing_cancels_waiting_dispatches_but_not_the_closed_event_itself(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        pr = await relay.github.open_pr(UPSTREAM)
        other = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.close_pr(pr, merged=True)
        await relay.pass_time(60)

        assert sorted(dispatched_events(relay.github, "org/one")) == [
            ("closed", pr.head_sha),
            ("opened", other.head_sha),
        ]
        assert dispatched_actions(relay.github, "org/two") == ["opened", "opened", "closed"]


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
async def test_a_closed_pull_request_ends_closed_in_any_order_of_arrival(
    tmp_path: Path, order: list[int]
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await open_push_and_close(relay)
        held_webhooks, relay.github.webhooks.held = relay.github.webhooks.held, []
        for position in order:
            relay.github.webhooks.held = [held_webhooks[position]]
            await relay.github.release_webhooks()
            await relay.drain()

        assert dispatched_events(relay.github, "org/one")[-1] == ("closed", pr.head_sha)
        expected = [action for action, index in zip(("opened", "synchronize"), (0, 1), strict=True)
                    if all(order.index(later) > order.index(index) for later in range(index + 1, 3))]  # fmt: skip
        assert dispatched_actions(relay.github, "org/one")[:-1] == expected


async def test_events_that_arrive_after_closed_are_recorded_as_superseded_and_not_dispatched(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await open_push_and_close(relay)
        late = await relay.github.release_webhooks([2, 1, 0])
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["closed"]
        assert deliveries(relay) == {
            "closed": "accepted",
            "synchronize": "superseded",
            "opened": "superseded",
        }
        assert [delivery.status_code for delivery in late] == [202] * 3
        assert {
            row["reason"] for row in relay.rows("SELECT reason FROM deliveries WHERE state = 'superseded'")
        } == {"the pull request was closed since"}


async def test_a_backlog_collapses_to_the_newest_state_of_each_pull_request(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now())
        kept, closed = await relay.github.open_pr(UPSTREAM), await relay.github.open_pr(UPSTREAM)
        for _ in range(3):
            relay.clock.advance(1)
            await relay.github.push_to_pr(kept)
            await relay.github.push_to_pr(closed)
        relay.clock.advance(1)
        await relay.github.close_pr(closed)
        await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now(), lift=True)
        await relay.drain()

        assert sorted(dispatched_events(relay.github, "org/one")) == [
            ("closed", closed.head_sha),
            ("synchronize", kept.head_sha),
        ]


async def test_a_ready_for_review_that_overtakes_the_opened_event_releases_it(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one: {drafts: false}\n", downstreams=BOTH) as relay:
        relay.github.faults.webhooks.hold()
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.github.release_webhooks([1, 0])
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]


async def test_a_label_that_overtakes_a_push_does_not_make_the_push_stale(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        relay.github.faults.webhooks.hold()
        relay.clock.advance(1)
        await relay.github.push_to_pr(pr)
        relay.clock.advance(1)
        await relay.github.label_pr(pr, "ciflow")
        await relay.github.release_webhooks([1, 0])
        await relay.drain()

        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", pr.head_sha)


# Within one second


async def test_pushes_within_one_second_are_ordered_by_their_chain_without_a_lookup(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        for _ in range(3):
            await relay.drain()
            await relay.github.push_to_pr(pr)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["opened", *["synchronize"] * 3]
        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", pr.head_sha)
        assert relay.github.calls_to("GET", PULL) == []


async def test_an_opened_event_overtaken_by_a_push_within_a_second_is_superseded_without_a_lookup(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.webhooks.hold()
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.github.push_to_pr(pr)
        await relay.github.release_webhooks([1, 0])
        assert deliveries(relay) == {"synchronize": "accepted", "opened": "superseded"}
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]
        assert relay.github.calls_to("GET", PULL) == []


async def test_a_delivery_in_doubt_is_resolved_by_a_github_lookup_outside_the_request(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        calls = len(relay.github.calls)
        await relay.github.release_webhooks(
            [2, 0]
        )  # the last one first, then one that is no link of its chain
        assert row_states(relay, "deliveries") == ["accepted", "accepted", "in_doubt"]
        assert len(relay.github.calls) == calls
        await relay.drain()

        assert row_states(relay, "deliveries") == ["accepted", "accepted", "superseded"]
        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", pr.head_sha)
        assert len(relay.github.calls_to("GET", PULL)) == 1


async def test_a_delivery_in_doubt_that_is_current_is_dispatched_although_its_predecessor_came_later(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        await relay.github.release_webhooks([0, 2, 1])  # the last skips a link; then the link comes
        assert row_states(relay, "deliveries") == ["accepted", "accepted", "in_doubt", "accepted"]
        await relay.drain()

        assert row_states(relay, "deliveries") == ["accepted"] * 4
        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", pr.head_sha)


async def test_resolving_a_delivery_in_doubt_drops_waiting_dispatches_of_older_heads(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        pr = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        await relay.github.release_webhooks([0])
        await relay.drain()
        relay.github.faults.webhooks.clear()
        await relay.github.send_webhook("pull_request", pr_body(pr))
        await relay.drain()
        await relay.pass_time(60)

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]


def pr_body(pr: PullRequest) -> dict[str, object]:
    assert pr.last_delivery is not None
    return dict(json.loads(pr.last_delivery.payload))


async def test_closed_and_reopened_within_a_second_ends_open_in_either_order_of_arrival(
    tmp_path: Path,
) -> None:
    for order in ([0, 1], [1, 0]):
        folder = tmp_path / str(order[0])
        folder.mkdir()
        async with running_relay(folder, TWO, downstreams=BOTH) as relay:
            pr = await relay.github.open_pr(UPSTREAM)
            await relay.drain()
            relay.github.faults.webhooks.hold()
            relay.clock.advance(1)
            await relay.github.close_pr(pr)
            await relay.github.reopen_pr(pr)
            await relay.github.release_webhooks(order)
            await relay.drain()

            assert dispatched_events(relay.github, "org/one")[-1] == ("reopened", pr.head_sha)
            assert relay.rows("SELECT is_open FROM pulls") == [{"is_open": 1}]


async def test_a_lookup_answer_older_than_the_webhooks_is_requested_again(tmp_path: Path) -> None:
    """GitHub answers from replicas that may lag behind."""
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        old_head, old_time = pr.head_sha, pr.updated_at
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        await relay.github.release_webhooks([0, 2])
        new_head, pr.head_sha = pr.head_sha, old_head
        pr.updated_at, new_time = old_time, pr.updated_at
        await relay.drain()
        assert "superseded" not in row_states(relay, "deliveries")

        pr.head_sha, pr.updated_at = new_head, new_time
        await relay.pass_time(2)
        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", new_head)


@pytest.mark.parametrize("option", ["drafts: false", "authors: approved"])
async def test_resolving_a_doubt_does_not_release_a_dispatch_held_as_draft_or_for_approval(
    tmp_path: Path, option: str
) -> None:
    async with running_relay(tmp_path, f"L1:\n  - org/one: {{{option}}}\n", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        await relay.github.release_webhooks([0, 2])
        await relay.drain()
        assert relay.github.dispatches() == []
        assert row_states(relay, "deliveries")[-1] == "accepted"

        relay.github.faults.webhooks.clear()
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.drain()
        expected = [("synchronize", pr.head_sha)] if option.startswith("drafts") else []
        assert dispatched_events(relay.github, "org/one") == expected


async def test_a_delivery_in_doubt_is_not_released_by_ready_for_review_alone(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one: {drafts: false}\n", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.github.release_webhooks(
            [2, 0, 3]
        )  # in doubt: the first push, which the last one overtook
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("synchronize", pr.head_sha)]
        assert dispatch_attempts(relay.github, "org/one") == 1


async def test_ready_for_review_during_a_doubt_takes_effect_when_the_doubt_is_resolved(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one: {drafts: false}\n", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        relay.clock.advance(1)
        relay.github.faults.webhooks.hold()
        for _ in range(3):
            await relay.github.push_to_pr(pr)
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.github.release_webhooks([0, 2, 3])  # in doubt: the last push, which skips a link
        await relay.drain()

        assert dispatched_events(relay.github, "org/one")[-1] == ("synchronize", pr.head_sha)


# Any history, in any order of arrival


@dataclass(frozen=True)
class History:
    acts: list[tuple[str, int]]
    """What people do, each with the seconds that passed before it."""
    order: list[int]
    """The order of arrival; one number for each act and the opening."""
    pauses: list[bool]
    """After which arrivals the relay processes its queue before the next."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    seconds = st.sampled_from((0, 0, 1, 2))
    act = st.tuples(st.sampled_from(("push", "close", "reopen", "label")), seconds)
    force_push = st.tuples(
        st.just("push back"), st.just(1)
    )  # see `decide.dispatch.ordering` for what one second may hold
    acts = draw(st.lists(act | force_push, min_size=1, max_size=5))
    count = len(acts) + 1
    order = draw(st.permutations(range(count)))
    return History(acts, list(order), draw(st.lists(st.booleans(), min_size=count, max_size=count)))


async def play_acts(relay: RunningRelay, history: History) -> PullRequest:
    relay.github.faults.webhooks.hold()
    pull = await relay.github.open_pr(UPSTREAM)
    first = pull.head_sha
    for act, seconds in history.acts:
        relay.clock.advance(seconds)
        if act == "push" and pull.state == "open":
            await relay.github.push_to_pr(pull)
        elif act == "push back" and pull.state == "open":
            await force_push_back(relay.github, pull, first)
        elif act == "close" and pull.state == "open":
            await relay.github.close_pr(pull)
        elif act == "reopen" and pull.state == "closed":
            await relay.github.reopen_pr(pull)
        else:
            await relay.github.label_pr(pull, "a label")
    return pull


async def deliver_webhooks(relay: RunningRelay, history: History) -> None:
    held_webhooks = relay.github.webhooks.held
    for position, pause in zip(history.order, history.pauses, strict=True):
        relay.github.webhooks.held = [held_webhooks[position]]
        await relay.github.release_webhooks()
        if pause:
            await relay.drain()
    await relay.drain()


async def check_newest_state_is_last(history: History) -> None:
    with TemporaryDirectory() as folder:
        async with running_relay(Path(folder), TWO, downstreams=BOTH) as relay:
            pull = await play_acts(relay, history)
            await deliver_webhooks(relay, history)
            last_action, last_head = dispatched_events(relay.github, "org/one")[-1]

            assert last_head == pull.head_sha
            assert (last_action == "closed") is (pull.state == "closed")
            assert dispatched_events(relay.github, "org/two") == dispatched_events(relay.github, "org/one")
            assert set(row_states(relay, "effects")) == {"done"} | (
                set(row_states(relay, "effects")) & {"cancelled"}
            )


BACK_AND_FORTH = History([("push", 0), ("push back", 0)], [2, 1, 0], [True] * 3)
ROUND_AND_BACK = History([("push", 0), ("push", 0), ("push back", 0)], [0, 1, 3, 2], [False] * 4)
CLOSED_AND_REOPENED = History([("close", 1), ("reopen", 0)], [0, 2, 1], [True] * 3)


@settings(max_examples=25, deadline=None)
@given(history=histories())
@example(history=BACK_AND_FORTH)
@example(history=ROUND_AND_BACK)
@example(history=CLOSED_AND_REOPENED)
def test_the_newest_state_is_dispatched_last_in_any_order_of_arrival(history: History) -> None:
    asyncio.run(check_newest_state_is_last(history))
