"""Files that `crcr init` writes, run for each CI: a change upstream, and the reports that the relay receives."""

import asyncio
import json
from pathlib import Path

import pytest

from crcr.decide.model import Level, RepoName
from crcr.join.request import Ci
from support.downstream.joined_downstream import (
    DOWNSTREAM,
    RunningDownstream,
    downstream_request,
    running_downstream,
)
from support.github.gated_upstream import gate_state
from support.paths import ROOT
from support.running_relay import UPSTREAM

pytestmark = pytest.mark.slow
EVERY_CI = pytest.mark.parametrize("ci", list(Ci), ids=[ci.value for ci in Ci])
FAILS = """mkdir -p out && cat > out/junit.xml <<'XML'
<testsuite><testcase name="a"/><testcase name="b"><failure message="boom"/></testcase></testsuite>
XML
echo 'ld: error: undefined symbol f'; echo 'password=hunter2' >&2; exit 3"""
WAITS = 'echo begun > "%s"; sleep 120'


def job_logs(downstream: RunningDownstream) -> str:
    """All output of the jobs, for the message of a failing test."""
    runs = [step.log for run in downstream.github.runs(DOWNSTREAM) for job in run.jobs for step in job.steps]
    builds = [job.log for build in downstream.builds for job in build.jobs.values()]
    return "".join([*runs, *builds])


async def wait_until_build_started(downstream: RunningDownstream, marker: Path) -> None:
    """Let the relay work until the build has started."""
    async with asyncio.timeout(60):
        while not path_exists(marker):
            await downstream.relay.drain()
            await asyncio.sleep(0.05)


def path_exists(path: Path) -> bool:
    return path.exists()


@EVERY_CI
async def test_a_pull_request_with_a_hostile_title_and_branch_is_built_and_reported_safely(
    tmp_path: Path, ci: Ci
) -> None:
    hostile = (
        '"; echo pwn""ed; $(echo pwn""ed) `echo pwn""ed` ${{ secrets.BUILDKITE_API_TOKEN }} << pipeline.id >>'
    )
    build = 'env; cat .crcr/* > /dev/null; echo "testing $UPSTREAM_SHA"'
    async with running_downstream(tmp_path, downstream_request(ci), build=build) as downstream:
        pull = await downstream.github.open_pr(
            UPSTREAM, title=hostile, body=hostile, head="x;echo${IFS}pwn''ed"
        )
        await downstream.run_to_end()
        assert downstream.job_conclusions() == [("build", "success")], job_logs(downstream)
        (job,) = downstream.jobs()
        assert job["in_progress_at"] is not None
        assert f"testing {pull.head_sha}" in job_logs(downstream)
        assert "pwned" not in job_logs(downstream)
        assert downstream.runner.problems == []


@EVERY_CI
async def test_a_failed_build_is_reported_with_the_counts_of_its_junit_file(tmp_path: Path, ci: Ci) -> None:
    join = downstream_request(ci, junit="out/*.xml")
    async with running_downstream(tmp_path, join, build=FAILS) as downstream:
        await downstream.github.push(UPSTREAM)
        await downstream.run_to_end()
        assert downstream.job_conclusions() == [("build", "failure")], job_logs(downstream)
        (job,) = downstream.jobs()
        # On other CIs the build may see secrets of its project or its agent: the log is sent only on request.
        shown = {
            "first_error": "ld: error: undefined symbol f",
            "tail": "ld: error: undefined symbol f\npassword=***",
        }
        assert json.loads(job["log_excerpt"] or "null") == (shown if ci is Ci.GITHUB else None)
        assert (job["tests_passed"], job["tests_failed"]) == (1, 1), job_logs(downstream)
        assert downstream.runner.problems == []


FIXED = '#!/usr/bin/env bash\nset -eu\ntest -z "${ACTIONS_ID_TOKEN_REQUEST_TOKEN:-}"\necho built-the-fix\n'


async def test_a_pair_is_built_from_the_pull_request_that_the_change_depends_on(tmp_path: Path) -> None:
    async with running_downstream(
        tmp_path, downstream_request(), build="echo built-main; exit 1"
    ) as downstream:
        github = downstream.github
        other = await github.open_pr(DOWNSTREAM, files={"ci/build-and-test": FIXED})
        await github.open_pr(UPSTREAM, body=f"Depends-On: {DOWNSTREAM}#{other.number}")
        await downstream.run_to_end()
        results = {job["event"]: job["conclusion"] for job in downstream.jobs()}
        assert results == {"pull_request": "failure", "crcr_pair": "success"}, job_logs(downstream)
        logs = job_logs(downstream)
        assert "built-main" in logs
        assert "built-the-fix" in logs
        assert downstream.runner.problems == []


@EVERY_CI
async def test_a_test_dispatch_reports_without_building(tmp_path: Path, ci: Ci) -> None:
    async with running_downstream(tmp_path, downstream_request(ci), build="echo never-built") as downstream:
        now, target = downstream.relay.clock.now(), RepoName(DOWNSTREAM)
        await downstream.relay.services.acts.dispatch_test(
            RepoName(UPSTREAM), target, "round-trip", now=now, who="anja"
        )
        await downstream.run_to_end()
        assert downstream.job_conclusions() == [("build", "skipped")], job_logs(downstream)
        assert "never-built" not in job_logs(downstream)


@pytest.mark.parametrize("ci", [Ci.GITHUB, Ci.BUILDKITE])
async def test_a_manual_run_in_the_actions_tab_tests_the_round_trip_without_a_token(
    tmp_path: Path, ci: Ci
) -> None:
    async with running_downstream(tmp_path, downstream_request(ci), build="echo never-built") as downstream:
        downstream.github.start_run(DOWNSTREAM, event="workflow_dispatch")
        await downstream.runner.settle()
        await downstream.run_to_end()
        assert downstream.job_conclusions() == [("build", "skipped")], job_logs(downstream)
        (act,) = downstream.relay.rows("SELECT who, act FROM audit WHERE act = 'dispatch_test'")
        assert act["who"] == f"{DOWNSTREAM} (its own token)"
        assert "never-built" not in job_logs(downstream)
        assert downstream.runner.problems == []


async def test_a_manual_run_of_an_unlisted_repository_makes_a_trial_in_the_sandbox(tmp_path: Path) -> None:
    join = downstream_request()
    async with running_downstream(
        tmp_path, join, listed="L1:\n  - org/other\n", CRCR_SANDBOX="on"
    ) as downstream:
        downstream.github.start_run(DOWNSTREAM, event="workflow_dispatch")
        await downstream.runner.settle()
        await downstream.run_to_end()
        (job,) = downstream.relay.rows("SELECT state, conclusion, event_type FROM sandbox_jobs")
        assert tuple(job.values()) == ("completed", "skipped", "crcr_test"), job_logs(downstream)
        assert downstream.jobs() == []


async def test_closing_a_pull_request_cancels_its_running_build(tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    async with running_downstream(tmp_path, downstream_request(), build=WAITS % marker) as downstream:
        pull = await downstream.github.open_pr(UPSTREAM)
        await wait_until_build_started(downstream, marker)
        await downstream.github.close_pr(pull)
        async with asyncio.timeout(60):
            await downstream.run_to_end()
        first, second = downstream.github.runs(DOWNSTREAM)
        assert (first.conclusion, second.conclusion) == ("cancelled", "skipped")
        assert downstream.job_conclusions() == [("build", "cancelled")], job_logs(downstream)


async def test_a_newer_head_cancels_the_build_of_the_older_one(tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    build = f'if [ -e "{marker}" ]; then exit 0; fi; {WAITS % marker}'
    async with running_downstream(tmp_path, downstream_request(), build=build) as downstream:
        pull = await downstream.github.open_pr(UPSTREAM)
        await wait_until_build_started(downstream, marker)
        await downstream.github.push_to_pr(pull)
        async with asyncio.timeout(60):
            await downstream.run_to_end()
        assert sorted(downstream.job_conclusions()) == [("build", "cancelled"), ("build", "success")], (
            job_logs(downstream)
        )


async def test_a_buildkite_build_of_a_closed_pull_request_is_cancelled(tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    async with running_downstream(
        tmp_path, downstream_request(Ci.BUILDKITE), build=WAITS % marker
    ) as downstream:
        pull = await downstream.github.open_pr(UPSTREAM)
        await wait_until_build_started(downstream, marker)
        await downstream.github.close_pr(pull)
        async with asyncio.timeout(60):
            await downstream.run_to_end()
        assert [build.state for build in downstream.builds] == ["canceled"]


async def test_the_code_of_a_pull_request_cannot_request_a_token(tmp_path: Path) -> None:
    async with running_downstream(
        tmp_path, downstream_request(), build='echo "url=${ACTIONS_ID_TOKEN_REQUEST_URL-none}"'
    ) as downstream:
        await downstream.github.open_pr(UPSTREAM)
        await downstream.run_to_end()
        (run,) = downstream.github.runs(DOWNSTREAM)
        assert "url=none" in job_logs(downstream)
        assert downstream.github.request_tokens.minted[run.job("build").id] == 0


@EVERY_CI
async def test_a_nightly_run_tests_the_newest_commit_and_reports_it(tmp_path: Path, ci: Ci) -> None:
    async with running_downstream(
        tmp_path, downstream_request(ci, nightly=True), build='echo "testing $UPSTREAM_SHA"'
    ) as downstream:
        head = downstream.github.repository(UPSTREAM).head_sha
        downstream.github.start_run(DOWNSTREAM, event="schedule")
        await downstream.run_to_end()
        assert f"testing {head}" in job_logs(downstream)
        assert downstream.job_conclusions() == [("build", "success")], job_logs(downstream)
        [job] = downstream.relay.jobs()
        assert json.loads(job["untrusted"])["workflow"]["started_at"]


async def test_the_composite_action_reports_the_result(tmp_path: Path) -> None:
    action = f"acme/relay/action@{'a' * 40}"
    async with running_downstream(tmp_path, downstream_request(action=action)) as downstream:
        downstream.runner.actions["acme/relay/action"] = ROOT / "action"
        await downstream.github.open_pr(UPSTREAM)
        await downstream.run_to_end()
        assert downstream.job_conclusions() == [("build", "success")], job_logs(downstream)


@pytest.mark.parametrize(("build", "verdict"), [("true", "success"), ("false", "failure")])
async def test_the_verdict_of_a_gating_backend_follows_its_generated_workflow(
    tmp_path: Path, build: str, verdict: str
) -> None:
    join = downstream_request(level=Level.L4, oncalls=("anja",))
    async with running_downstream(tmp_path, join, build=build) as downstream:
        downstream.github.repository(DOWNSTREAM).sends_run_webhooks = True
        pull = await downstream.github.open_pr(UPSTREAM)
        await downstream.run_to_end()
        await downstream.relay.pass_time(5)
        assert gate_state(downstream.relay, pull) == verdict, job_logs(downstream)


async def test_a_rerun_from_github_is_reported_as_its_next_attempt(tmp_path: Path) -> None:
    build = 'test "$GITHUB_RUN_ATTEMPT" = 2'
    async with running_downstream(tmp_path, downstream_request(), build=build) as downstream:
        await downstream.github.open_pr(UPSTREAM)
        await downstream.run_to_end()
        (run,) = downstream.github.runs(DOWNSTREAM)
        await downstream.github.rerun(run)
        await downstream.run_to_end()
        attempts = [(job["attempt"], job["conclusion"]) for job in downstream.jobs()]
        assert attempts == [(1, "failure"), (2, "success")], job_logs(downstream)
