"""Fault 68: a green gate outlives its closed pull request and serves the next pull request on that commit."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    finish_jobs,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
)
from support.github.merge_queue import enqueue, move_base, settle_queue
from support.stage import UPSTREAM

ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
CHECK_RUNS = f"/repos/{UPSTREAM}/check-runs"


def gates(it: Stage, sha: str) -> list[str | None]:
    """How every gate check of a commit ended, the oldest first; None for one that is open."""
    found = [each for each in it.github.checks(UPSTREAM, sha) if each.name == GATE]
    return [each.conclusion for each in sorted(found, key=lambda each: each.id)]


async def green_pull(it: Stage, **more: object) -> PullRequest:
    pull = await open_pull(it, **more)
    await run_all(it)
    assert it.github.merge_state(pull).mergeable
    return pull


async def close(it: Stage, pull: PullRequest, *, merged: bool = False) -> None:
    it.clock.advance(1)
    await it.github.close_pr(pull, merged=merged)
    await it.act()


async def same_head(it: Stage, pull: PullRequest) -> PullRequest:
    """Somebody opens another pull request with the same commit; the relay has not worked on it yet."""
    it.clock.advance(1)

    def take_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    return await it.github.open_pr(UPSTREAM, before_webhook=take_head)


async def test_fault_68_the_next_pull_request_on_a_closed_head_does_not_merge_by_its_old_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        await close(it, pull)
        assert gates(it, pull.head_sha) == ["success", "cancelled"]

        twin = await same_head(it, pull)
        # The relay is slow: nothing has been published about the new pull request yet.
        assert it.github.merge_state(twin).blocked_by == (f"{GATE}: failure",)
        await it.act()
        assert gates(it, pull.head_sha) == ["success", "cancelled", None]
        await run_all(it, build="failure")
        assert not it.github.merge_state(twin).mergeable


async def test_fault_68_a_superseded_green_head_is_cancelled_with_one_call_and_only_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        first = pull.head_sha
        it.clock.advance(1)
        await it.github.push_to_pr(pull)
        await it.act()
        for _ in range(3):
            await sweep_after(it, 60)
        await close(it, pull)

        assert gates(it, first) == ["success", "cancelled"]


async def test_fault_68_a_merged_head_keeps_its_green(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        by_github = await green_pull(it)
        await it.github.merge_pr(by_github)
        await it.act()
        by_label = await green_pull(it, labels=["Merged"])
        await close(it, by_label)
        await it.act()

        assert [gates(it, pull.head_sha) for pull in (by_github, by_label)] == [["success"], ["success"]]


async def test_fault_68_the_green_stays_while_another_pull_request_has_the_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        twin = await same_head(it, pull)
        await it.act()
        await run_all(it)
        await close(it, pull)
        assert it.github.merge_state(twin).mergeable
        await close(it, twin)

        assert gates(it, twin.head_sha)[-1] == "cancelled"


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "dequeued"])
async def test_fault_68_a_destroyed_group_is_cancelled_unless_it_was_merged(
    tmp_path: Path, merged: bool
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        await move_base(it)
        group = await enqueue(it, pull)
        await run_all(it)
        assert gates(it, group.head_sha) == ["success"]
        if merged:
            await settle_queue(it)
        else:
            await it.github.dequeue(group)
            await it.act()

        assert pull.merged is merged
        assert gates(it, group.head_sha) == (["success"] if merged else ["success", "cancelled"])


async def test_fault_68_a_relay_that_dies_while_it_cancels_finds_the_green_gate_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        it.github.faults.answer(502, on=Match("POST", CHECK_RUNS), times=1)
        await close(it, pull)
        assert gates(it, pull.head_sha) == ["success"]
        await it.pass_time(60)
        assert gates(it, pull.head_sha) == ["success", "cancelled"]


async def test_fault_68_closing_before_the_new_gate_is_out_does_not_uncover_an_old_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await green_pull(it)
        # The new gate of a re-run is refused by GitHub's limits until the pull request is closed.
        away = it.github.faults.answer(502, on=Match("POST", CHECK_RUNS))
        run = newest_run(it)
        await it.github.rerun(run)
        await start_jobs(it, run)
        it.clock.advance(1)
        await it.github.close_pr(pull)
        it.github.faults.remove(away)
        await it.pass_time(120)
        await finish_jobs(it, run)

        assert gates(it, pull.head_sha) == ["success", "cancelled"]
