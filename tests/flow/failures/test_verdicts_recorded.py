"""Verdicts through the whole relay, on both stores: computed with the result, and again when history changes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import Match, PullRequest, Repository, WorkflowRun
from support.downstream.callbacks import BACKEND, post_report, workflow_with_jobs
from support.running_relay import UPSTREAM, RunningRelay, running_relay

HOUR = 3600.0
LISTED = f"L2:\n  - {BACKEND}: {{paths: ['**']}}\n"
COMPARISON = Match("GET", f"/repos/{UPSTREAM}/compare/*")
BROKEN = "RuntimeError: aten::foo has no kernel at 0x{0:x}"


@pytest.fixture(params=["sqlite", "postgresql"])
async def relay(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[RunningRelay]:
    """A backend with one job that tests pushes and pull requests; `paths` make the merge base known."""
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


def upstream(relay: RunningRelay) -> Repository:
    return relay.github.repository(UPSTREAM)


async def run_ends(relay: RunningRelay, run: WorkflowRun, message: str | None = None) -> None:
    """Start and end the run's job: it passes, or fails in one test with this message."""
    result: dict[str, Any] = {"conclusion": "success"}
    if message is not None:
        tests = [
            {
                "name": "test_lazy",
                "file": "test.py",
                "message": message.format(relay.clock.now().minute + run.attempt),
            }
        ]
        result = {"conclusion": "failure", "failed_tests": tests}
    for status, more in (("in_progress", {}), ("completed", result)):
        answer = await post_report(relay, run, "test", status, **more)
        assert answer.status_code == 200, answer.text
    await relay.drain()
    relay.clock.advance(HOUR)


async def push(relay: RunningRelay, *messages: str | None) -> None:
    """One push for each message; the backend tests each, and passes where the message is None."""
    for message in messages:
        await relay.github.push(UPSTREAM)
        await relay.drain()
        await run_ends(relay, relay.github.runs(BACKEND)[-1], message)


async def open_pull(
    relay: RunningRelay, message: str | None, *, base: str | None = None, author: str = "ada"
) -> PullRequest:
    """A pull request with one commit on top of the base's newest one, or of another one; and its result."""

    def build_on(pull: PullRequest) -> None:
        parent = base or upstream(relay).head_sha
        tip = relay.github.world.commit(
            upstream(relay), pull.title, pull.author, parent=parent, changes={f"{pull.number}.py": b"new"}
        )
        pull.head_sha, pull.commits, pull.files = tip.sha, 1, (f"{pull.number}.py",)
        upstream(relay).branches[pull.head_ref] = tip.sha

    pull = await relay.github.open_pr(
        UPSTREAM, author=author, author_association="MEMBER", before_webhook=build_on
    )
    await relay.drain()
    await run_ends(relay, relay.github.runs(BACKEND)[-1], message)
    return pull


async def read_job(relay: RunningRelay, pull: PullRequest) -> dict[str, Any]:
    answer = await relay.http.get(f"/api/v1/pulls/{pull.number}")
    (job,) = answer.json()["backends"][0]["jobs"]
    return dict(job)


async def read_verdict(relay: RunningRelay, pull: PullRequest) -> tuple[str, str]:
    verdict = (await read_job(relay, pull))["verdict"]
    return verdict["kind"], verdict["confidence"]


async def test_a_failure_is_compared_with_the_base_that_its_head_was_built_on(relay: RunningRelay) -> None:
    await push(relay, None, None, None)
    clean = upstream(relay).head_sha
    await push(relay, BROKEN, BROKEN)
    before = await open_pull(relay, BROKEN, base=clean)
    after = await open_pull(relay, BROKEN, author="bob")
    assert await read_verdict(relay, before) == ("new", "medium")
    assert await read_verdict(relay, after) == ("pre-existing", "high")
    job = await read_job(relay, after)
    assert job["failed_tests"][0]["verdict"] == {"kind": "pre-existing", "confidence": "high"}
    page = (await relay.http.get(f"/crcr/pr/{after.number}")).text
    assert "The base failed alike 2 times in a row" in page
    for evidence in job["verdict"]["evidence"]:
        assert (await relay.http.get(evidence["url"])).status_code == 200


async def test_a_passing_rerun_changes_the_verdict_and_records_the_previous_one(relay: RunningRelay) -> None:
    await push(relay, None, None, None)
    pull = await open_pull(relay, BROKEN)
    assert await read_verdict(relay, pull) == ("new", "medium")
    run = relay.github.runs(BACKEND)[-1]
    await relay.github.rerun(run)
    await run_ends(relay, run, BROKEN)
    assert await read_verdict(relay, pull) == ("new", "high")
    await relay.github.rerun(run)
    await run_ends(relay, run)
    rows = relay.rows(
        "SELECT verdict, verdict_before FROM failures WHERE number IS NOT NULL ORDER BY attempt"
    )
    assert rows == [{"verdict": "flaky", "verdict_before": "new"}] * 2


async def test_a_later_result_of_the_base_changes_the_verdict(relay: RunningRelay) -> None:
    await push(relay, None, None, None)
    await relay.github.push(UPSTREAM)
    await relay.drain()
    slow = relay.github.runs(BACKEND)[-1]
    pull = await open_pull(relay, BROKEN)
    assert (await read_verdict(relay, pull))[0] == "new"
    await run_ends(relay, slow, BROKEN)
    job = await read_job(relay, pull)
    assert (job["verdict"]["kind"], job["verdict"]["was"]) == ("pre-existing", "new")
    await push(relay, BROKEN)
    assert await read_verdict(relay, pull) == ("pre-existing", "high")


async def test_a_merge_base_that_becomes_known_later_changes_the_verdict(tmp_path: Path) -> None:
    """One backend needs the changed files, which GitHub does not list at first; the other does not wait for them."""
    listed = f"L2:\n  - {BACKEND}\n  - org/second: {{paths: ['**']}}\n"
    async with running_relay(tmp_path, listed, downstreams=(BACKEND, "org/second")) as relay:
        relay.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        await push(relay, None, None, None)
        clean = upstream(relay).head_sha
        await push(relay, BROKEN, BROKEN)
        outage = relay.github.faults.answer(502, on=COMPARISON)
        pull = await open_pull(relay, BROKEN, base=clean)
        before = (await read_verdict(relay, pull))[0]
        relay.github.faults.remove(outage)
        relay.clock.advance(HOUR)
        await relay.drain()
        job = await read_job(relay, pull)
        assert (job["verdict"]["kind"], job["verdict"]["was"]) == ("new", before)


async def test_equal_failures_are_one_group_with_its_first_commit(relay: RunningRelay) -> None:
    await push(relay, None, None, BROKEN)
    first = upstream(relay).head_sha
    pull = await open_pull(relay, BROKEN)
    (group,) = (await relay.http.get(f"/api/v1/pulls/{pull.number}")).json()["groups"]
    assert group["first_seen"]["sha"] == first
    assert group["first_seen"]["number"] is None
    assert (group["on_base"], group["is_first_here"]) == (1, False)
    assert group["jobs"] == [f"{BACKEND}:test"]


async def test_a_passing_first_run_on_a_pull_request_writes_no_failure_rows(
    relay: RunningRelay,
) -> None:
    await push(relay, None)
    await open_pull(relay, None)
    assert relay.rows("SELECT * FROM failures") == []
    assert [row["position"] for row in relay.rows("SELECT position FROM base_commits ORDER BY position")] == [
        1
    ]
