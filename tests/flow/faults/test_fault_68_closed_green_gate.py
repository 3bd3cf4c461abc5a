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


def gates(relay: RunningRelay, sha: str) -> list[str | None]:
    """How every gate check of a commit ended, the oldest first; None for one that is open."""
    found = [each for each in relay.github.checks(UPSTREAM, sha) if each.name == GATE]
    return [each.conclusion for each in sorted(found, key=lambda each: each.id)]


async def green_pull(relay: RunningRelay, **more: object) -> PullRequest:
    pull = await open_pull(relay, **more)
    await run_all(relay)
    assert relay.github.merge_state(pull).mergeable
    return pull


async def close(relay: RunningRelay, pull: PullRequest, *, merged: bool = False) -> None:
    relay.clock.advance(1)
    await relay.github.close_pr(pull, merged=merged)
    await relay.drain()


async def same_head(relay: RunningRelay, pull: PullRequest) -> PullRequest:
    """Somebody opens another pull request with the same commit; the relay has not worked on it yet."""
    relay.clock.advance(1)

    def take_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    return await relay.github.open_pr(UPSTREAM, before_webhook=take_head)


async def test_fault_68_the_next_pull_request_on_a_closed_head_does_not_merge_by_its_old_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        await close(relay, pull)
        assert gates(relay, pull.head_sha) == ["success", "cancelled"]

        twin = await same_head(relay, pull)
        # The relay is slow: nothing has been published about the new pull request yet.
        assert relay.github.merge_state(twin).blocked_by == (f"{GATE}: failure",)
        await relay.drain()
        assert gates(relay, pull.head_sha) == ["success", "cancelled", None]
        await run_all(relay, build="failure")
        assert not relay.github.merge_state(twin).mergeable


async def test_fault_68_a_superseded_green_head_is_cancelled_with_one_call_and_only_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        first = pull.head_sha
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        for _ in range(3):
            await sweep_after(relay, 60)
        await close(relay, pull)

        assert gates(relay, first) == ["success", "cancelled"]


async def test_fault_68_a_merged_head_keeps_its_green(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        by_github = await green_pull(relay)
        await relay.github.merge_pr(by_github)
        await relay.drain()
        by_label = await green_pull(relay, labels=["Merged"])
        await close(relay, by_label)
        await relay.drain()

        assert [gates(relay, pull.head_sha) for pull in (by_github, by_label)] == [["success"], ["success"]]


async def test_fault_68_the_green_stays_while_another_pull_request_has_the_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        twin = await same_head(relay, pull)
        await relay.drain()
        await run_all(relay)
        await close(relay, pull)
        assert relay.github.merge_state(twin).mergeable
        await close(relay, twin)

        assert gates(relay, twin.head_sha)[-1] == "cancelled"


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "dequeued"])
async def test_fault_68_a_destroyed_group_is_cancelled_unless_it_was_merged(
    tmp_path: Path, merged: bool
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay)
        assert gates(relay, group.head_sha) == ["success"]
        if merged:
            await settle_queue(relay)
        else:
            await relay.github.dequeue(group)
            await relay.drain()

        assert pull.merged is merged
        assert gates(relay, group.head_sha) == (["success"] if merged else ["success", "cancelled"])


async def test_fault_68_a_relay_that_dies_while_it_cancels_finds_the_green_gate_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        # For the whole time: the dispatch that is sent beside it may bring the next attempt forward.
        away = relay.github.faults.answer(502, on=Match("POST", CHECK_RUNS))
        await close(relay, pull)
        assert gates(relay, pull.head_sha) == ["success"]
        relay.github.faults.remove(away)
        await relay.pass_time(60)
        assert gates(relay, pull.head_sha) == ["success", "cancelled"]


async def test_fault_68_closing_before_the_new_gate_is_out_does_not_uncover_an_old_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await green_pull(relay)
        # The new gate of a re-run is refused by GitHub's limits until the pull request is closed.
        away = relay.github.faults.answer(502, on=Match("POST", CHECK_RUNS))
        run = newest_run(relay)
        await relay.github.rerun(run)
        await start_jobs(relay, run)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        relay.github.faults.remove(away)
        await relay.pass_time(120)
        await finish_jobs(relay, run)

        assert gates(relay, pull.head_sha) == ["success", "cancelled"]
