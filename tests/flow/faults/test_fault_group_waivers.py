"""One pull request of a merge group gets into the base branch on the waiver of another."""

from pathlib import Path

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_summary,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    write_comment,
)
from support.github.merge_queue import enqueue_together, move_base, settle_queue
from support.running_relay import RunningRelay

ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
PATHS = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: [src/**]}}\n"
WAIVE = f"/crcr waive {GATING} because the runner is on fire"


async def open_tested_pull(relay: RunningRelay, path: str, **conclusions: str) -> PullRequest:
    """A pull request that changes one file, with the results of its own head."""
    pull = await open_pull(relay, files=[path])
    await run_all(relay, **conclusions)
    return pull


def is_green(relay: RunningRelay, head: str) -> bool:
    check = shown_check(relay, GATE, head)
    return check is not None and check[1] == "success"


async def test_fault_group_waivers_a_failed_pull_request_does_not_merge_on_the_waiver_of_another(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        waived = await open_tested_pull(relay, "src/one.py", build="failure")
        rider = await open_tested_pull(relay, "src/two.py", build="failure")
        await write_comment(relay, waived, WAIVE)
        await move_base(relay)
        head = await enqueue_together(relay, waived, rider)
        await run_all(relay, build="failure")

        assert not is_green(relay, head)
        assert f"the waiver of #{waived.number} does not count here" in gate_summary(relay, head)
        assert f"it is failed for #{rider.number} at its own head" in gate_summary(relay, head)
        # The maintainer waives the other one too, and the group is evaluated again at once.
        await write_comment(
            relay, rider, f"/crcr waive {GATING}:build until 1d because it is the same runner"
        )
        assert is_green(relay, head)
        await write_comment(relay, rider, f"/crcr unwaive {GATING}:build")
        assert not is_green(relay, head)
        await settle_queue(relay)
        assert not rider.merged


async def test_fault_group_waivers_results_of_the_others_own_head_open_and_close_the_groups_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        waived = await open_tested_pull(relay, "src/one.py", build="failure")
        await write_comment(relay, waived, f"/crcr waive {GATING} until 3d because the runner is on fire")
        other = await open_pull(relay, files=["src/two.py"])
        own_run = relay.github.runs(GATING)[-1]
        await start_jobs(relay, own_run)
        await move_base(relay)
        head = await enqueue_together(relay, waived, other)
        await run_all(relay, build="failure")
        assert not is_green(relay, head)  # the other one is still being tested
        await finish_jobs(relay, own_run)
        assert is_green(relay, head)
        await relay.github.rerun(own_run)
        await start_jobs(relay, own_run)
        await finish_jobs(relay, own_run, build="failure")

        assert not is_green(relay, head)


async def test_fault_group_waivers_an_unaffected_pull_request_does_not_count_as_passed(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, PATHS, downstreams=(GATING,)) as relay:
        waived = await open_tested_pull(relay, "src/one.py", build="failure")
        await write_comment(relay, waived, WAIVE)
        docs = await open_pull(relay, files=["docs/two.md"])
        assert is_green(relay, docs.head_sha)
        await move_base(relay)
        head = await enqueue_together(relay, waived, docs)
        await run_all(relay, build="failure")

        assert not is_green(relay, head)
        assert f"#{docs.number}" in gate_summary(relay, head)
        await write_comment(relay, docs, WAIVE)
        assert is_green(relay, head)


async def test_fault_group_waivers_a_push_after_the_group_was_created_ends_its_waivers(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        waived = await open_tested_pull(relay, "src/one.py", build="failure")
        await write_comment(relay, waived, f"/crcr waive {GATING} until 3d because the runner is on fire")
        other = await open_tested_pull(relay, "src/two.py")
        await move_base(relay)
        head = await enqueue_together(relay, waived, other)
        group_run = relay.github.runs(GATING)[-1]
        relay.clock.advance(1)
        await relay.github.push_to_pr(other)
        await relay.drain()
        await run_all(relay)  # the pushed head passes; the group contains the older one
        await start_jobs(relay, group_run)
        await finish_jobs(relay, group_run, build="failure", test="success")

        assert not is_green(relay, head)
        assert f"which head of #{other.number} is in the group is not known" in gate_summary(relay, head)
