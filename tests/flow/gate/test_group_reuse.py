"""A merge group that a passed head speaks for: only while that head passes, and only for whoever is in the queue."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.commands import WAIVE, failing_pull
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
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

HOUR = 3600.0
ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
CHECKS = Match(path="*/check-runs*")
REUSED = ("completed", "success", "the same tree has passed already")
WAITS = ("in_progress", None, f"waiting for {GATING}")


async def excused(it: Stage, waive: str = WAIVE) -> PullRequest:
    """A pull request that failed, and passes by a waiver alone."""
    pull = await failing_pull(it)
    await write_comment(it, pull, waive)
    assert gate_state(it, pull) == "success"
    return pull


async def silence_the_gate(it: Stage) -> None:
    """GitHub takes no checks for so long that the relay leaves them alone for a while."""
    it.github.faults.answer(502, on=CHECKS)
    await open_pull(it, files=["src/other.py"])
    for _ in range(9):
        await it.pass_time(30)


# The head passes no more


async def test_a_head_whose_waiver_is_gone_speaks_for_no_group_though_it_still_looks_green(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await excused(it)
        await silence_the_gate(it)
        await write_comment(it, pull, f"/crcr unwaive {GATING}")
        assert gate_state(it, pull) == "success"
        group = await enqueue(it, pull)
        assert dispatched_groups(it, GATING) == [("checks_requested", group.head_sha)]
        it.github.faults.clear()
        await sweep_after(it, HOUR)

        assert (gate_state(it, pull), shown_check(it, GATE, group.head_sha)) == ("failure", WAITS)


async def waived(it: Stage) -> PullRequest:
    return await excused(it)


async def waived_for_an_hour(it: Stage) -> PullRequest:
    return await excused(it, f"/crcr waive {GATING} until 1h because the runner is on fire")


async def passed_by_its_own_word(it: Stage) -> PullRequest:
    """The App may not read how its jobs ended."""
    await it.github.change_permissions(GATING, actions=None)
    pull = await open_pull(it)
    run = newest_run(it)
    await start_jobs(it, run)
    for job in run.jobs:
        await it.github.report(run, job, status="completed", conclusion="success")
    await it.act()
    return pull


async def unwaive(it: Stage, pull: PullRequest) -> None:
    await write_comment(it, pull, f"/crcr unwaive {GATING}")


async def wait_an_hour(it: Stage, _: PullRequest) -> None:
    await sweep_after(it, HOUR)


async def contradict(it: Stage, _pull: PullRequest) -> None:
    run = newest_run(it)
    for job in run.jobs:
        it.github.ci.complete(run, job, "failure")
    await it.github.change_permissions(GATING, actions="read")
    for _ in range(3):
        await sweep_after(it, 65)


ENDS = {
    "its waiver is taken back": (waived, unwaive),
    "its waiver runs out": (waived_for_an_hour, wait_an_hour),
    "GitHub saw its job fail": (passed_by_its_own_word, contradict),
}


@pytest.mark.parametrize(("passed", "end"), ENDS.values(), ids=ENDS)
async def test_a_group_waits_for_its_own_backends_once_the_head_that_spoke_for_it_passes_no_more(
    tmp_path: Path,
    passed: Callable[[Stage], Awaitable[PullRequest]],
    end: Callable[[Stage, PullRequest], Awaitable[None]],
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await passed(it)
        group = await enqueue(it, pull)
        assert (shown_check(it, GATE, group.head_sha), dispatched_groups(it, GATING)) == (REUSED, [])
        await end(it, pull)

        assert gate_state(it, pull) == "failure"
        assert shown_check(it, GATE, group.head_sha) == WAITS
        assert dispatched_groups(it, GATING) == [("checks_requested", group.head_sha)]
        await settle_queue(it)
        assert not pull.merged


async def test_what_a_group_earns_after_its_reuse_ended_is_its_own(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await excused(it)
        group = await enqueue(it, pull)
        await unwaive(it, pull)
        await run_all(it)

        assert shown_check(it, GATE, group.head_sha) == ("completed", "success", "1 backend passed")
        await settle_queue(it)
        assert pull.merged


# The head has nobody who wants it any more


async def merge(it: Stage, _: PullRequest) -> None:
    await settle_queue(it)


async def close(it: Stage, pull: PullRequest) -> None:
    it.clock.advance(1)
    await it.github.close_pr(pull)
    await it.act()


@pytest.mark.parametrize("end", [merge, close])
async def test_the_pass_of_a_group_outlives_the_pull_request_that_spoke_for_it(
    tmp_path: Path, end: Callable[[Stage, PullRequest], Awaitable[None]]
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        pull = await excused(it)
        group = await enqueue(it, pull)
        # GitHub tells of the group's end later, or never.
        it.github.faults.webhooks.lose(event="merge_group")
        await end(it, pull)
        await it.services.reconciler.run(thorough=True)
        await sweep_after(it, HOUR)

        assert pull.state == "closed"
        assert (shown_check(it, GATE, group.head_sha), dispatched_groups(it, GATING)) == (REUSED, [])


# Whose waivers count


async def stranger_on(it: Stage, waived: PullRequest) -> PullRequest:
    """Somebody else's pull request, whose branch begins with the waived one's commits."""

    def take_its_commits(pull: PullRequest) -> None:
        pull.head_sha = waived.head_sha
        it.github._commit(pull, "And more", ["src/evil.py"])

    return await open_pull(it, author="mallory", before_webhook=take_its_commits)


async def test_whoever_takes_a_waived_pull_requests_commits_does_not_get_its_waiver(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        mine = await excused(it)
        theirs = await stranger_on(it, mine)
        await move_base(it)
        group = await enqueue(it, theirs)
        assert dispatched_groups(it, GATING) == [("checks_requested", group.head_sha)]
        await run_all(it, build="failure")

        assert shown_check(it, GATE, group.head_sha) == ("completed", "failure", f"{GATING} failed (build)")


async def test_a_waiver_covers_the_group_that_its_own_pull_request_is_queued_in(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        mine = await excused(it)
        theirs = await stranger_on(it, mine)
        await run_all(it)  # by themselves they pass
        await move_base(it)
        head = await enqueue_together(it, mine, theirs)
        await run_all(it, build="failure")

        assert shown_check(it, GATE, head) == ("completed", "success", f"{GATING} waived by @maintainer")
