"""Fault 68: a green gate outlives its closed pull request and serves the next pull request on that commit."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
)
from support.github.merge_queue import enqueue, move_base, settle_queue
from support.running_relay import UPSTREAM, RunningRelay

ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
CHECK_RUNS = f"/repos/{UPSTREAM}/check-runs"


def gate_conclusions(relay: RunningRelay, sha: str) -> list[str | None]:
    """The conclusion of every gate check of a commit, the oldest first; None for one that is open."""
    gate_checks = [check for check in relay.github.checks(UPSTREAM, sha) if check.name == GATE]
    return [check.conclusion for check in sorted(gate_checks, key=lambda check: check.id)]


async def open_green_pull(relay: RunningRelay, **more: object) -> PullRequest:
    pull = await open_pull(relay, **more)
    await run_all(relay)
    assert relay.github.merge_state(pull).mergeable
    return pull


async def close(relay: RunningRelay, pull: PullRequest, *, merged: bool = False) -> None:
    relay.clock.advance(1)
    await relay.github.close_pr(pull, merged=merged)
    await relay.drain()


async def open_with_same_head(relay: RunningRelay, pull: PullRequest) -> PullRequest:
    """Somebody opens another pull request with the same commit; the relay has not worked on it yet."""
    relay.clock.advance(1)

    def take_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    return await relay.github.open_pr(UPSTREAM, before_webhook=take_head)


async def test_fault_68_a_new_pull_request_on_a_closed_head_cannot_merge_on_its_old_green_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        await close(relay, pull)
        assert gate_conclusions(relay, pull.head_sha) == ["success", "cancelled"]

        twin = await open_with_same_head(relay, pull)
        # The relay is slow: nothing has been published about the new pull request yet.
        assert relay.github.merge_state(twin).blocked_by == (f"{GATE}: failure",)
        await relay.drain()
        assert gate_conclusions(relay, pull.head_sha) == ["success", "cancelled", None]
        await run_all(relay, build="failure")
        assert not relay.github.merge_state(twin).mergeable


async def test_fault_68_a_superseded_green_head_is_cancelled_with_one_call_and_only_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        first = pull.head_sha
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        for _ in range(3):
            await sweep_after(relay, 60)
        await close(relay, pull)

        assert gate_conclusions(relay, first) == ["success", "cancelled"]


async def test_fault_68_a_merged_head_keeps_its_green_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        by_github = await open_green_pull(relay)
        await relay.github.merge_pr(by_github)
        await relay.drain()
        by_label = await open_green_pull(relay, labels=["Merged"])
        await close(relay, by_label)
        await relay.drain()

        assert [gate_conclusions(relay, pull.head_sha) for pull in (by_github, by_label)] == [
            ["success"],
            ["success"],
        ]


async def test_fault_68_the_green_gate_stays_while_another_pull_request_has_the_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        twin = await open_with_same_head(relay, pull)
        await relay.drain()
        await run_all(relay)
        await close(relay, pull)
        assert relay.github.merge_state(twin).mergeable
        await close(relay, twin)

        assert gate_conclusions(relay, twin.head_sha)[-1] == "cancelled"


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "dequeued"])
async def test_fault_68_a_destroyed_group_is_cancelled_unless_it_was_merged(
    tmp_path: Path, merged: bool
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay)
        assert gate_conclusions(relay, group.head_sha) == ["success"]
        if merged:
            await settle_queue(relay)
        else:
            await relay.github.dequeue(group)
            await relay.drain()

        assert pull.merged is merged
        assert gate_conclusions(relay, group.head_sha) == (
            ["success"] if merged else ["success", "cancelled"]
        )


async def test_fault_68_a_failed_cancellation_of_the_green_gate_is_retried(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        # Not limited in number: the dispatch that is sent at the same time can trigger the next attempt earlier.
        outage = relay.github.faults.answer(502, on=Match("POST", CHECK_RUNS))
        await close(relay, pull)
        assert gate_conclusions(relay, pull.head_sha) == ["success"]
        relay.github.faults.remove(outage)
        await relay.pass_time(60)
        assert gate_conclusions(relay, pull.head_sha) == ["success", "cancelled"]


async def test_fault_68_closing_before_the_new_gate_is_published_does_not_leave_the_old_green_one(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_green_pull(relay)
        # The new gate of a rerun cannot be published until the pull request is closed.
        outage = relay.github.faults.answer(502, on=Match("POST", CHECK_RUNS))
        run = newest_run(relay)
        await relay.github.rerun(run)
        await start_jobs(relay, run)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        relay.github.faults.remove(outage)
        await relay.pass_time(120)
        await finish_jobs(relay, run)

        assert gate_conclusions(relay, pull.head_sha) == ["success", "cancelled"]
