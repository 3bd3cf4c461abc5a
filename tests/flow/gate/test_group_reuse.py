"""A merge group that reuses the result of a passed head: only while that head passes and its pull request is queued."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.commands import WAIVE, failing_pull
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.github.merge_queue import dispatched_groups, enqueue, enqueue_together, move_base, settle_queue
from support.running_relay import RunningRelay

HOUR = 3600.0
ALLOWLIST = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
CHECKS = Match(path="*/check-runs*")
REUSED = ("completed", "success", "the same tree has passed already")
WAITING = ("in_progress", None, f"waiting for {GATING}")


async def open_waived_pull(relay: RunningRelay, waive: str = WAIVE) -> PullRequest:
    """Open a pull request that failed and passes only by a waiver."""
    pull = await failing_pull(relay)
    await write_comment(relay, pull, waive)
    assert gate_state(relay, pull) == "success"
    return pull


async def pause_check_publication(relay: RunningRelay) -> None:
    """Let the checks API fail for so long that the relay pauses its check calls."""
    relay.github.faults.answer(502, on=CHECKS)
    await open_pull(relay, files=["src/other.py"])
    for _ in range(9):
        await relay.pass_time(30)


# The head no longer passes


async def test_a_head_whose_waiver_was_revoked_is_not_reused_even_if_its_check_still_passes(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        pull = await open_waived_pull(relay)
        await pause_check_publication(relay)
        await write_comment(relay, pull, f"/crcr unwaive {GATING}")
        assert gate_state(relay, pull) == "success"
        group = await enqueue(relay, pull)
        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        relay.github.faults.clear()
        await sweep_after(relay, HOUR)

        assert (gate_state(relay, pull), shown_check(relay, GATE, group.head_sha)) == ("failure", WAITING)


async def waived(relay: RunningRelay) -> PullRequest:
    return await open_waived_pull(relay)


async def waived_for_an_hour(relay: RunningRelay) -> PullRequest:
    return await open_waived_pull(relay, f"/crcr waive {GATING} until 1h because the runner is on fire")


async def passed_as_reported(relay: RunningRelay) -> PullRequest:
    """The App may not read how the jobs ended."""
    await relay.github.change_permissions(GATING, actions=None)
    pull = await open_pull(relay)
    run = newest_run(relay)
    await start_jobs(relay, run)
    for job in run.jobs:
        await relay.github.report(run, job, status="completed", conclusion="success")
    await relay.drain()
    return pull


async def unwaive(relay: RunningRelay, pull: PullRequest) -> None:
    await write_comment(relay, pull, f"/crcr unwaive {GATING}")


async def wait_an_hour(relay: RunningRelay, _: PullRequest) -> None:
    await sweep_after(relay, HOUR)


async def fail_on_github(relay: RunningRelay, _pull: PullRequest) -> None:
    run = newest_run(relay)
    for job in run.jobs:
        relay.github.ci.complete(run, job, "failure")
    await relay.github.change_permissions(GATING, actions="read")
    for _ in range(3):
        await sweep_after(relay, 65)


ENDS = {
    "its waiver is taken back": (waived, unwaive),
    "its waiver runs out": (waived_for_an_hour, wait_an_hour),
    "GitHub saw its job fail": (passed_as_reported, fail_on_github),
}


@pytest.mark.parametrize(("passed", "end"), ENDS.values(), ids=ENDS)
async def test_a_group_is_dispatched_itself_once_the_reused_head_no_longer_passes(
    tmp_path: Path,
    passed: Callable[[RunningRelay], Awaitable[PullRequest]],
    end: Callable[[RunningRelay, PullRequest], Awaitable[None]],
) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        pull = await passed(relay)
        group = await enqueue(relay, pull)
        assert (shown_check(relay, GATE, group.head_sha), dispatched_groups(relay, GATING)) == (REUSED, [])
        await end(relay, pull)

        assert gate_state(relay, pull) == "failure"
        assert shown_check(relay, GATE, group.head_sha) == WAITING
        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        await settle_queue(relay)
        assert not pull.merged


async def test_a_group_keeps_its_own_result_after_its_reuse_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        pull = await open_waived_pull(relay)
        group = await enqueue(relay, pull)
        await unwaive(relay, pull)
        await run_all(relay)

        assert shown_check(relay, GATE, group.head_sha) == ("completed", "success", "1 backend passed")
        await settle_queue(relay)
        assert pull.merged


# The pull request of the head is merged or closed


async def merge(relay: RunningRelay, _: PullRequest) -> None:
    await settle_queue(relay)


async def close(relay: RunningRelay, pull: PullRequest) -> None:
    relay.clock.advance(1)
    await relay.github.close_pr(pull)
    await relay.drain()


@pytest.mark.parametrize("end", [merge, close])
async def test_a_reused_pass_of_a_group_survives_the_end_of_its_pull_request(
    tmp_path: Path, end: Callable[[RunningRelay, PullRequest], Awaitable[None]]
) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        pull = await open_waived_pull(relay)
        group = await enqueue(relay, pull)
        # The webhook about the group's end is lost.
        relay.github.faults.webhooks.lose(event="merge_group")
        await end(relay, pull)
        await relay.services.reconciler.run(thorough=True)
        await sweep_after(relay, HOUR)

        assert pull.state == "closed"
        assert (shown_check(relay, GATE, group.head_sha), dispatched_groups(relay, GATING)) == (REUSED, [])


# Which waivers count


async def open_pull_on_top_of(relay: RunningRelay, waived: PullRequest) -> PullRequest:
    """Open a pull request of another author on top of the commits of the waived one."""

    def take_its_commits(pull: PullRequest) -> None:
        pull.head_sha = waived.head_sha
        relay.github._commit(pull, "And more", ["src/evil.py"])

    return await open_pull(relay, author="mallory", before_webhook=take_its_commits)


async def test_a_pull_request_on_top_of_a_waived_one_does_not_inherit_its_waiver(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        mine = await open_waived_pull(relay)
        theirs = await open_pull_on_top_of(relay, mine)
        await move_base(relay)
        group = await enqueue(relay, theirs)
        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "failure",
            f"{GATING} failed (build)",
        )


async def test_a_waiver_covers_the_group_in_which_its_own_pull_request_is_queued(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=(GATING,)) as relay:
        mine = await open_waived_pull(relay)
        theirs = await open_pull_on_top_of(relay, mine)
        await run_all(relay)  # the second pull request passes by itself
        await move_base(relay)
        head = await enqueue_together(relay, mine, theirs)
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, head) == ("completed", "success", f"{GATING} waived by @maintainer")
