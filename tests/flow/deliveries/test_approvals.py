"""`authors: approved` and `trusted`: what runs only after a person's word, for which head, and what the gate says."""

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


async def test_what_needs_approval_is_held_and_the_gate_says_what_releases_it(tmp_path: Path) -> None:
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


async def test_what_is_held_has_no_deadline(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(30 * 24 * 3600.0)
        await relay.services.sweeper.sweep()
        await relay.services.reconciler.run()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"
        assert was_obeyed(await write_comment(relay, pull, APPROVE))
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_an_approval_dispatches_the_held_event_as_it_was(tmp_path: Path) -> None:
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


async def test_an_approval_by_the_author_alone_releases_nothing(tmp_path: Path) -> None:
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


async def test_a_reopened_head_that_nobody_approved_is_released_without_its_old_end(tmp_path: Path) -> None:
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


async def test_the_end_of_an_approved_head_is_told(tmp_path: Path) -> None:
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


async def test_the_end_of_a_head_that_nobody_approved_is_told_to_nobody(tmp_path: Path) -> None:
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
async def test_a_draft_that_needs_approval_waits_for_both_in_either_order(
    tmp_path: Path, approval_first: bool
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist("authors: approved, drafts: false")) as relay:
        pull = await open_pull(relay, draft=True)
        reasons = []
        for approving in (approval_first, not approval_first):
            title = latest_check(relay, GATE, pull.head_sha).output["title"]
            reasons.append((title, len(relay.github.dispatches())))
            relay.clock.advance(60)
            await (write_comment(relay, pull, APPROVE) if approving else relay.github.ready_for_review(pull))
            await relay.drain()

        left = "draft" if approval_first else "approval"
        assert reasons == [(f"{GATING} is held (approval)", 0), (f"{GATING} is held ({left})", 0)]
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_a_draft_that_only_waits_to_be_ready_says_so(tmp_path: Path) -> None:
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
async def test_a_gate_for_trusted_authors_runs_theirs_at_once(tmp_path: Path, association: str) -> None:
    async with gated_upstream(tmp_path, TRUSTED) as relay:
        await open_pull(relay, author_association=association)

        assert dispatched_actions(relay.github, GATING) == ["opened"]


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
async def test_below_l4_a_backend_for_trusted_authors_just_leaves_outsiders_out(
    tmp_path: Path, level: str
) -> None:
    async with running_relay(
        tmp_path, gating_allowlist("authors: trusted", level), downstreams=(GATING,)
    ) as relay:
        pull = await open_pull(relay, author="outsider", author_association="FIRST_TIME_CONTRIBUTOR")
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        await write_comment(relay, pull, APPROVE)

        assert relay.github.dispatches() == []


async def test_an_approval_waits_for_nobody_elses_run(tmp_path: Path) -> None:
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


async def test_an_approved_head_still_waits_for_the_answer_about_its_files(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, gating_allowlist('authors: approved, paths: ["src/**"]')) as relay:
        pull = await open_pull(relay)
        away = relay.github.faults.answer(503, on=Match("GET", "*/compare/*"))
        await write_comment(relay, pull, APPROVE)
        assert (relay.github.dispatches(), gate_state(relay, pull)) == ([], "pending")
        relay.github.faults.remove(away)
        await relay.pass_time(60)

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_an_entry_that_no_longer_needs_approval_goes_on_at_the_next_event(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        relay.write_allowlist(gating_allowlist("authors: any"))
        await relay.refresh()
        relay.clock.advance(60)
        await relay.github.label_pr(pull, "triaged")
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == ["opened"]
