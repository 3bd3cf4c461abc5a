"""A pull request of a merge group that the relay does not see there rides into the base branch on another's waiver."""

import json
from pathlib import Path

import pytest

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    write_comment,
)
from support.github.merge_queue import move_base

GPU = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], labels: [gpu]}}\n"


async def queue_both(it: Stage, ahead: PullRequest, behind: PullRequest, *, lost: bool) -> str:
    """GitHub makes one group of both; the webhook of the first one's own group may be lost."""
    if lost:
        it.github.faults.webhooks.lose(event="merge_group", times=1)
    first = await it.github.enqueue(ahead)
    it.github.faults.webhooks.lose(event="merge_group", times=1)
    group = await it.github.enqueue(behind)
    assert group.last_delivery is not None
    body = json.loads(group.last_delivery.payload)
    body["merge_group"]["base_sha"] = first.base_sha
    await it.github.send_webhook("merge_group", body)
    await it.act()
    return group.head_sha


@pytest.mark.parametrize(("commits", "lost"), [(60, False), (1, True)], ids=["many commits", "lost webhook"])
async def test_attack_whoever_is_not_seen_in_a_group_does_not_ride_on_its_waiver(
    tmp_path: Path, commits: int, lost: bool
) -> None:
    """The rider's own gate is green without a test: it has not the label of the backend that it breaks."""
    async with gated_upstream(tmp_path, GPU, downstreams=(GATING,)) as it:
        waived = await open_pull(it, files=["src/one.py"], labels=["gpu"])
        await run_all(it, build="failure")
        await write_comment(it, waived, f"/crcr waive {GATING} because the runner is on fire")
        rider = await open_pull(it, files=["src/two.py"])
        for _ in range(commits - 1):
            it.clock.advance(1)
            await it.github.push_to_pr(rider)
        await it.act()
        assert gate_state(it, rider) == "success"
        await move_base(it)
        head = await queue_both(it, rider, waived, lost=lost)
        for run in it.github.runs(GATING):
            if run.status != "completed":
                await start_jobs(it, run)
                await finish_jobs(it, run, build="failure", test="success")

        assert shown_check(it, GATE, head) == ("completed", "failure", f"{GATING} failed (build)")
        assert (
            "pull requests are not known, so no waiver applies"
            in latest_check(it, GATE, head).output["summary"]
        )
