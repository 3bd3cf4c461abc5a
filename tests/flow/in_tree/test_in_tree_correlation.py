"""In-tree failures together with those of downstreams, through the whole relay: culprits, pull requests and commits."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flow.failures.test_culprits_recorded import land, read_culprits
from flow.failures.test_verdicts_recorded import BROKEN, open_pull, push, upstream
from github_sim.bodies import webhooks
from github_sim.github import PullRequest
from support.downstream.callbacks import BACKEND, workflow_with_jobs
from support.running_relay import UPSTREAM, RunningRelay, running_relay

LISTED = f"L2:\n  - {BACKEND}: {{paths: ['**']}}\n"
ALWAYS_RED = "nightly / flaky gpu"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


async def run_ci(relay: RunningRelay, sha: str, **failing: str) -> None:
    """The upstream's own CI tests a commit: one check is always red, the others pass unless they are `failing`."""
    conclusions = {"linux / test": "success", "linux / lint": "success", ALWAYS_RED: "failure", **failing}
    for name, conclusion in conclusions.items():
        started = await relay.github.start_ci_check(UPSTREAM, sha, name)
        relay.clock.advance(30)
        await relay.github.end_ci_check(started, conclusion)


RED = {"linux / test": "failure"}


async def land_and_check(relay: RunningRelay, pull: PullRequest, message: str | None, **failing: str) -> str:
    await land(relay, pull, message)
    await run_ci(relay, upstream(relay).head_sha, **failing)
    return upstream(relay).head_sha


async def break_base(relay: RunningRelay) -> tuple[list[PullRequest], str]:
    """Four pull requests land, the backend tests the last one, and the second one broke an in-tree check."""
    for _ in range(3):
        await push(relay, None, None)
        await run_ci(relay, upstream(relay).head_sha)
    pulls = [await open_pull(relay, None) for _ in range(4)]
    shas = [
        await land_and_check(relay, pull, "untested" if pull is not pulls[-1] else BROKEN, **conclusions)
        for pull, conclusions in zip(pulls, ({}, RED, RED, RED), strict=True)
    ]
    return pulls, shas[1]


async def test_the_change_that_turned_an_in_tree_check_red_is_the_first_candidate_of_a_downstream(
    relay: RunningRelay,
) -> None:
    pulls, broken = await break_base(relay)
    for hours in (0, 2):  # before and after the checks are packed
        await relay.pass_time(hours * 3600)
        await relay.services.sweeper.sweep()
        (breakage,) = await read_culprits(relay, f"?backend={BACKEND}")
        first = breakage["candidates"][0]
        assert (first["number"], first["sha"]) == (pulls[1].number, broken)
        assert first["reasons"][0] == "in-tree check `linux / test` began to fail at it"


async def test_a_red_in_tree_check_is_listed_with_its_culprit(relay: RunningRelay) -> None:
    pulls, broken = await break_base(relay)
    culprits = await read_culprits(relay)
    assert [(breakage["backend"], breakage["job"]) for breakage in culprits] == [
        (BACKEND, "test"),
        (UPSTREAM, "linux / test"),
        (UPSTREAM, ALWAYS_RED),
    ]
    assert culprits[1]["range"]["bad"] == broken
    assert [breakage["number"] for breakage in culprits[1]["candidates"]] == [pulls[1].number]
    assert (culprits[2]["range"]["good"], culprits[2]["candidates"]) == (None, [])
    page = (await relay.http.get(f"/crcr/commit/{upstream(relay).head_sha}")).text
    assert "red since" in page
    assert f">#{pulls[1].number}</a>?" in page


async def test_a_pull_request_shows_its_in_tree_failures_and_their_results_on_the_base(
    relay: RunningRelay,
) -> None:
    await push(relay, None, None)
    await run_ci(relay, upstream(relay).head_sha)
    pull = await open_pull(relay, BROKEN)
    await run_ci(relay, pull.head_sha, **RED, **{"cla / signed": "failure"})
    answer: dict[str, Any] = (await relay.http.get(f"/api/v1/pulls/{pull.number}")).json()
    assert {check["name"]: check["on_base"] for check in answer["in_tree"]["failing"]} == {
        "cla / signed": None,
        "linux / test": "passed",
        ALWAYS_RED: "failed",
    }
    (group,) = answer["groups"]
    assert group["in_tree"] == (
        "In-tree CI fails on this commit too: linux / test, which passed on the base; nightly / flaky gpu, which also"
        " fails on the base; cla / signed, of which the base has no result."
    )


async def test_a_pull_request_merged_while_failing_in_tree_is_the_first_candidate(
    relay: RunningRelay,
) -> None:
    for _ in range(2):
        await push(relay, None, None)
        await run_ci(relay, upstream(relay).head_sha)
    innocent, guilty = await open_pull(relay, None), await open_pull(relay, None)
    await run_ci(relay, innocent.head_sha)
    await run_ci(relay, guilty.head_sha, **RED)
    await land(relay, guilty, "untested")
    await land(relay, innocent, BROKEN)
    (breakage,) = await read_culprits(relay, f"?backend={BACKEND}")
    assert breakage["candidates"][0]["reasons"][0] == (
        f"#{guilty.number} was merged while in-tree check `linux / test` failed on it"
    )
    second_run = await relay.github.start_ci_check(UPSTREAM, guilty.head_sha, "linux / test")
    await relay.github.end_ci_check(second_run, "success")
    relay.clock.advance(2)  # responses are cached for a second
    (breakage,) = await read_culprits(relay, f"?backend={BACKEND}")
    assert not any("in-tree" in text for candidate in breakage["candidates"] for text in candidate["reasons"])


async def test_duplicate_and_reordered_webhooks_give_the_same_culprit(relay: RunningRelay) -> None:
    shas = []
    for _ in range(4):
        await push(relay, None)
        shas.append(upstream(relay).head_sha)
    hold = relay.github.faults.webhooks.hold(event="check_run")
    for sha, conclusions in zip(shas, ({}, {}, RED, RED), strict=True):
        await run_ci(relay, sha, **{"linux / test": "failure"})
        second_run = await relay.github.start_ci_check(UPSTREAM, sha, "linux / test")
        await relay.github.end_ci_check(second_run, conclusions.get("linux / test", "success"))
    relay.github.faults.webhooks.remove(hold)
    held = len(relay.github.webhooks.held)
    await relay.github.release_webhooks(order=Random(5).sample(range(held), held))
    for delivery in relay.github.deliveries():
        if delivery.event == "check_run":
            await relay.github.redeliver(delivery.guid)
    (breakage,) = await read_culprits(relay, f"?backend={UPSTREAM}&job=linux%20/%20test")
    assert breakage["range"] == {"good": shas[1], "bad": shas[2], "commits": 1}


async def test_a_commit_removed_by_a_force_push_is_no_longer_listed_as_red(relay: RunningRelay) -> None:
    await push(relay, None, None)
    await run_ci(relay, upstream(relay).head_sha)
    good = upstream(relay).head_sha
    await push(relay, None)
    removed = upstream(relay).head_sha
    await run_ci(relay, removed, **RED)
    query = f"?backend={UPSTREAM}&job=linux%20/%20test"
    assert [breakage["range"]["bad"] for breakage in await read_culprits(relay, query)] == [removed]
    owner = upstream(relay).owner
    tip = relay.github.world.commit(upstream(relay), "Again", owner, parent=good, changes={"a.py": b"a"})
    upstream(relay).branches["main"] = tip.sha
    body = webhooks.push(
        relay.github.base_url,
        upstream(relay),
        ref="refs/heads/main",
        before=removed,
        after=tip.sha,
        commits=[tip],
        forced=True,
        pusher=owner,
    )
    await relay.github.emit("push", body, upstream(relay), owner)
    await relay.drain()
    await run_ci(relay, tip.sha)
    assert await read_culprits(relay, query) == []
