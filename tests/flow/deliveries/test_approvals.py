"""`authors: approved` and `trusted`: which dispatches need a person's approval, for which head, and what the gate shows."""

from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked, PullRequest
from support.github.commands import relay_comments, was_obeyed
from support.github.dispatch_log import dispatched_actions, dispatched_events
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    push_to_pull,
    run_all,
    shown_check,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay, running_relay

APPROVE = "/crcr approve"


def gating_allowlist(options: str, level: str = "L4") -> str:
    entry = f"{GATING}: {{oncalls: [bob], jobs: [build, test], {options}}}"
    return f"L3:\n  npu:\n    {entry}\n" if level == "L3" else f"{level}:\n  - {entry}\n"


APPROVED = gating_allowlist("authors: approved")
TRUSTED = gating_allowlist("authors: trusted")


async def close_and_reopen(relay: RunningRelay, pull: PullRequest) -> None:
    for act in (relay.github.close_pr, relay.github.reopen_pr):
        relay.clock.advance(60)
        await act(pull)
        await relay.drain()


def summary(relay: RunningRelay, pull: PullRequest) -> str:
    return str(latest_check(relay, GATE, pull.head_sha).output["summary"])


async def test_a_dispatch_that_needs_approval_is_held_and_the_gate_says_how_to_release_it(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)

        assert relay.github.dispatches() == []
        assert shown_check(relay, GATE, pull.head_sha) == (
            "in_progress",
            None,
            f"{GATING} is held (approval)",
        )
        assert f"someone with write rights comments `/crcr approve at {pull.head_sha[:12]}`" in summary(
            relay, pull
        )
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(pull)


async def test_a_held_dispatch_has_no_deadline(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(30 * 24 * 3600.0)
        await relay.services.sweeper.sweep()
        await relay.services.reconciler.run()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"
        assert was_obeyed(await write_comment(relay, pull, APPROVE))
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_an_approval_dispatches_the_held_event_with_its_original_payload(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay, title="As it was")
        assert pull.last_delivery is not None
        opened = pull.last_delivery.guid
        await relay.github.edit_pr(pull, title="Changed since")
        relay.github.set_permission(UPSTREAM, "writer", "write")
        assert was_obeyed(await write_comment(relay, pull, APPROVE, author="writer"))

        [sent] = relay.github.dispatches(GATING)
        payload = sent.client_payload["payload"]
        assert (sent.delivery_id, payload["action"]) == (opened, "opened")
        assert payload["pull_request"]["title"] == "As it was"
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


async def test_an_approval_by_the_author_releases_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)

        assert not was_obeyed(await write_comment(relay, pull, APPROVE, author="contributor"))
        assert (relay.github.dispatches(), gate_state(relay, pull)) == ([], "pending")


async def test_an_approval_is_valid_for_its_head_only(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, APPROVE)
        await push_to_pull(relay, pull)
        assert dispatched_actions(relay.github, GATING) == ["opened"]
        assert shown_check(relay, GATE, pull.head_sha) == (
            "in_progress",
            None,
            f"{GATING} is held (approval)",
        )
        await write_comment(relay, pull, APPROVE)

        assert dispatched_actions(relay.github, GATING) == ["opened", "synchronize"]


async def test_reopening_an_approved_head_needs_no_second_approval(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, APPROVE)
        await close_and_reopen(relay, pull)

        assert dispatched_actions(relay.github, GATING) == ["opened", "closed", "reopened"]


async def test_approving_a_reopened_head_dispatches_reopened_without_the_earlier_closed(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        await close_and_reopen(relay, pull)
        assert dispatched_actions(relay.github, GATING) == []
        await write_comment(relay, pull, APPROVE)

        assert dispatched_actions(relay.github, GATING) == ["reopened"]


async def test_the_approval_of_one_pull_request_does_not_release_another_with_the_same_head(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        one = await open_pull(relay)
        await open_pull(relay, before_webhook=lambda pull: setattr(pull, "head_sha", one.head_sha))
        await write_comment(relay, one, APPROVE)

        assert len(relay.github.dispatches(GATING)) == 1


async def test_two_approvals_dispatch_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        for _ in range(2):
            assert was_obeyed(await write_comment(relay, pull, APPROVE))

        assert dispatched_actions(relay.github, GATING) == ["opened"]


# Closing


async def test_closing_an_approved_head_is_dispatched(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, APPROVE)
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert dispatched_events(relay.github, GATING) == [
            ("opened", pull.head_sha),
            ("closed", pull.head_sha),
        ]


async def test_closing_a_head_that_nobody_approved_is_not_dispatched(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert not was_obeyed(await write_comment(relay, pull, APPROVE))
        assert ["nothing to approve" in answer for answer in relay_comments(relay, pull)] == [True]
        assert relay.github.dispatches() == []


# Approval and drafts


@pytest.mark.parametrize("approval_first", [True, False])
async def test_a_draft_that_needs_approval_waits_for_readiness_and_approval_in_either_order(
    tmp_path: Path, approval_first: bool
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("authors: approved, drafts: false")) as relay:
        pull = await open_pull(relay, draft=True)
        reasons = []
        for is_approval in (approval_first, not approval_first):
            title = latest_check(relay, GATE, pull.head_sha).output["title"]
            reasons.append((title, len(relay.github.dispatches())))
            relay.clock.advance(60)
            await (
                write_comment(relay, pull, APPROVE) if is_approval else relay.github.ready_for_review(pull)
            )
            await relay.drain()

        remaining = "draft" if approval_first else "approval"
        assert reasons == [(f"{GATING} is held (approval)", 0), (f"{GATING} is held ({remaining})", 0)]
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_the_gate_says_that_a_held_draft_must_be_marked_ready(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("drafts: false")) as relay:
        pull = await open_pull(relay, draft=True)

        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"{GATING} is held (draft)")
        assert "mark the pull request ready for review" in summary(relay, pull)


# `authors: trusted`


async def test_a_gate_for_trusted_authors_holds_an_outsiders_head_for_approval(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TRUSTED) as relay:
        pull = await open_pull(relay, author="outsider", author_association="NONE", fork=True)
        assert (relay.github.dispatches(), gate_state(relay, pull)) == ([], "pending")
        assert shown_check(relay, GATE, pull.head_sha) == (
            "in_progress",
            None,
            f"{GATING} is held (approval)",
        )
        await write_comment(relay, pull, APPROVE)
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize("association", ["OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"])
async def test_a_gate_for_trusted_authors_dispatches_their_pull_requests_at_once(
    tmp_path: Path, association: str
) -> None:
    async with gated_upstream(tmp_path, TRUSTED) as relay:
        await open_pull(relay, author_association=association)

        assert dispatched_actions(relay.github, GATING) == ["opened"]


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
async def test_below_l4_a_backend_for_trusted_authors_gets_no_dispatch_of_outsiders(
    tmp_path: Path, level: str
) -> None:
    async with running_relay(
        tmp_path, gating_allowlist("authors: trusted", level), downstreams=(GATING,)
    ) as relay:
        pull = await open_pull(relay, author="outsider", author_association="FIRST_TIME_CONTRIBUTOR")
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        await write_comment(relay, pull, APPROVE)

        assert relay.github.dispatches() == []


async def test_an_approval_does_not_wait_for_runs_of_other_backends(tmp_path: Path) -> None:
    both = f"{APPROVED}  - {INFORMING}: {{oncalls: [ann], jobs: [build]}}\n"
    async with gated_upstream(tmp_path, both) as relay:
        pull = await open_pull(relay)
        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, INFORMING)) == (
            [],
            ["opened"],
        )
        await run_all(relay, INFORMING)
        assert gate_state(relay, pull) == "pending"
        await write_comment(relay, pull, APPROVE)
        await run_all(relay)

        assert (dispatched_actions(relay.github, INFORMING), gate_state(relay, pull)) == (
            ["opened"],
            "success",
        )


async def test_an_approved_head_still_waits_for_the_list_of_its_changed_files(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist('authors: approved, paths: ["src/**"]')) as relay:
        pull = await open_pull(relay)
        outage = relay.github.faults.answer(503, on=Match("GET", "*/compare/*"))
        await write_comment(relay, pull, APPROVE)
        assert (relay.github.dispatches(), gate_state(relay, pull)) == ([], "pending")
        relay.github.faults.remove(outage)
        await relay.pass_time(60)

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_a_held_dispatch_is_sent_at_the_next_event_once_its_entry_needs_no_approval(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.write_allowlist(gating_allowlist("authors: any"))
        await relay.refresh()
        relay.clock.advance(60)
        await relay.github.label_pr(pull, "triaged")
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == ["opened"]
