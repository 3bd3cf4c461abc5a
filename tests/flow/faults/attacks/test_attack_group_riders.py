"""A pull request that the relay does not recognize in a merge group gets into the base branch on another's waiver."""

import json
from pathlib import Path

import pytest

from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
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
from support.running_relay import RunningRelay

GPU = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], labels: [gpu]}}\n"


async def queue_both(relay: RunningRelay, ahead: PullRequest, behind: PullRequest, *, lost: bool) -> str:
    """GitHub puts both into one group; the webhook of the first one's own group may be lost."""
    if lost:
        relay.github.faults.webhooks.lose(event="merge_group", times=1)
    first = await relay.github.enqueue(ahead)
    relay.github.faults.webhooks.lose(event="merge_group", times=1)
    group = await relay.github.enqueue(behind)
    assert group.last_delivery is not None
    body = json.loads(group.last_delivery.payload)
    body["merge_group"]["base_sha"] = first.base_sha
    await relay.github.send_webhook("merge_group", body)
    await relay.drain()
    return group.head_sha


@pytest.mark.parametrize(("commits", "lost"), [(60, False), (1, True)], ids=["many commits", "lost webhook"])
async def test_attack_a_pull_request_not_recognized_in_a_group_does_not_merge_on_its_waiver(
    tmp_path: Path, commits: int, lost: bool
) -> None:
    """The rider's own gate is green without a test: it lacks the label of the backend that it breaks."""
    async with gated_upstream(tmp_path, GPU, downstreams=(GATING,)) as relay:
        waived = await open_pull(relay, files=["src/one.py"], labels=["gpu"])
        await run_all(relay, build="failure")
        await write_comment(relay, waived, f"/crcr waive {GATING} because the runner is on fire")
        rider = await open_pull(relay, files=["src/two.py"])
        for _ in range(commits - 1):
            relay.clock.advance(1)
            await relay.github.push_to_pr(rider)
        await relay.drain()
        assert gate_state(relay, rider) == "success"
        await move_base(relay)
        head = await queue_both(relay, rider, waived, lost=lost)
        for run in relay.github.runs(GATING):
            if run.status != "completed":
                await start_jobs(relay, run)
                await finish_jobs(relay, run, build="failure", test="success")

        check = shown_check(relay, GATE, head)
        assert check is not None
        assert check[:2] == ("completed", "failure")
        assert str(check[2]).startswith(f"{GATING} failed (build)")  # followed by the verdict
        assert (
            "pull requests are not known, so no waiver applies"
            in latest_check(relay, GATE, head).output["summary"]
        )
