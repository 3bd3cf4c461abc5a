"""One pull request of a merge group rides into the base branch on the waiver of another."""

from pathlib import Path

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    finish_jobs,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    write_comment,
)
from support.github.merge_queue import enqueue_together, move_base, settle_queue

ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
PATHS = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: [src/**]}}\n"
WAIVE = f"/crcr waive {GATING} because the runner is on fire"


async def pull_with(it: Stage, path: str, **conclusions: str) -> PullRequest:
    """A pull request that changes one file, with the results of its own head."""
    pull = await open_pull(it, files=[path])
    await run_all(it, **conclusions)
    return pull


def why(it: Stage, head: str) -> str:
    return str(latest_check(it, GATE, head).output["summary"])


def is_green(it: Stage, head: str) -> bool:
    found = shown_check(it, GATE, head)
    return found is not None and found[1] == "success"


async def test_fault_group_waivers_one_that_fails_does_not_ride_on_the_waiver_of_another(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        waived = await pull_with(it, "src/one.py", build="failure")
        rider = await pull_with(it, "src/two.py", build="failure")
        await write_comment(it, waived, WAIVE)
        await move_base(it)
        head = await enqueue_together(it, waived, rider)
        await run_all(it, build="failure")

        assert not is_green(it, head)
        assert f"the waiver of #{waived.number} does not count here" in why(it, head)
        assert f"it is failed for #{rider.number} at its own head" in why(it, head)
        # The maintainer looks at the other one too, and the group is judged again at once.
        await write_comment(it, rider, f"/crcr waive {GATING}:build until 1d because it is the same runner")
        assert is_green(it, head)
        await write_comment(it, rider, f"/crcr unwaive {GATING}:build")
        assert not is_green(it, head)
        await settle_queue(it)
        assert not rider.merged


async def test_fault_group_waivers_a_result_of_the_others_own_head_opens_and_shuts_the_group(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        waived = await pull_with(it, "src/one.py", build="failure")
        await write_comment(it, waived, f"/crcr waive {GATING} until 3d because the runner is on fire")
        other = await open_pull(it, files=["src/two.py"])
        own = it.github.runs(GATING)[-1]
        await start_jobs(it, own)
        await move_base(it)
        head = await enqueue_together(it, waived, other)
        await run_all(it, build="failure")
        assert not is_green(it, head)  # the other one is still being tested
        await finish_jobs(it, own)
        assert is_green(it, head)
        await it.github.rerun(own)
        await start_jobs(it, own)
        await finish_jobs(it, own, build="failure")

        assert not is_green(it, head)


async def test_fault_group_waivers_who_was_not_concerned_has_not_passed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, PATHS, downstreams=(GATING,)) as it:
        waived = await pull_with(it, "src/one.py", build="failure")
        await write_comment(it, waived, WAIVE)
        docs = await open_pull(it, files=["docs/two.md"])
        assert is_green(it, docs.head_sha)
        await move_base(it)
        head = await enqueue_together(it, waived, docs)
        await run_all(it, build="failure")

        assert not is_green(it, head)
        assert f"#{docs.number}" in why(it, head)
        await write_comment(it, docs, WAIVE)
        assert is_green(it, head)


async def test_fault_group_waivers_a_push_after_the_group_was_made_ends_its_waivers(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as it:
        waived = await pull_with(it, "src/one.py", build="failure")
        await write_comment(it, waived, f"/crcr waive {GATING} until 3d because the runner is on fire")
        other = await pull_with(it, "src/two.py")
        await move_base(it)
        head = await enqueue_together(it, waived, other)
        group_run = it.github.runs(GATING)[-1]
        it.clock.advance(1)
        await it.github.push_to_pr(other)
        await it.act()
        await run_all(it)  # what is pushed now passes; it is not what the group holds
        await start_jobs(it, group_run)
        await finish_jobs(it, group_run, build="failure", test="success")

        assert not is_green(it, head)
        assert f"which head of #{other.number} is in the group is not known" in why(it, head)
