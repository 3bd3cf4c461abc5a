"""The reporter as a real process against a real relay, in the environment of each CI."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import GitHub, JobSpec, Workflow
from support.downstream.callbacks import BACKEND, LISTED, job_marks
from support.downstream.reporter import reporter_setup
from support.running_relay import AUDIENCE, UPSTREAM

pytestmark = pytest.mark.slow

JUNIT = """<testsuites tests="99"><testsuite name="ops" tests="99" failures="0"><testcase classname="TestOps" name="add"/>
<testcase classname="TestOps" name="mul" file="test_ops.py"><failure message="1 != 2">trace</failure></testcase>
<testcase classname="TestOps" name="div"><skipped/></testcase></testsuite></testsuites>"""

NIGHTLY = (Workflow(listens=("repository_dispatch", "schedule"), jobs=(JobSpec("build"),)),)
SIM = GitHub(base_url="http://127.0.0.1:9")
REGISTERED: dict[str, dict[str, Any]] = {
    "buildkite": {
        "issuer": SIM.buildkite.url,
        "organization_id": SIM.buildkite.organization_id,
        "pipeline_id": SIM.buildkite.pipeline_id,
        "branches": ["main"],
    },
    "gitlab": {"issuer": SIM.gitlab.url, "project_id": "20617"},
    "circleci": {"issuer": SIM.circleci.url, "project_id": SIM.circleci.project_id, "branches": ["main"]},
}
ENVIRONMENTS = {
    "buildkite": {
        "BUILDKITE": "true",
        "BUILDKITE_BUILD_ID": "0190c2a1-build",
        "BUILDKITE_RETRY_COUNT": "0",
        "BUILDKITE_PIPELINE_SLUG": "backend",
        "BUILDKITE_LABEL": ":linux: build",
        "BUILDKITE_BUILD_URL": "https://buildkite.com/acme-inc/backend/builds/1417",
        "BUILDKITE_JOB_ID": "0190c2a1-job",
        "BUILDKITE_COMMAND_EXIT_STATUS": "2",
    },
    "gitlab": {
        "GITLAB_CI": "true",
        "CI_PIPELINE_ID": "574001",
        "CI_PROJECT_PATH": "acme/backend",
        "CI_JOB_NAME": "build 1/2",
        "CI_JOB_URL": "https://gitlab.example.org/acme/backend/-/jobs/302001",
        "CI_JOB_STATUS": "failed",
        "CI_JOB_STARTED_AT": "2026-01-01T00:00:00Z",
    },
    "circleci": {
        "CIRCLECI": "true",
        "CIRCLE_WORKFLOW_ID": "wf-1",
        "CIRCLE_PROJECT_REPONAME": "backend",
        "CIRCLE_JOB": "build",
        "CIRCLE_NODE_INDEX": "1",
        "CIRCLE_NODE_TOTAL": "4",
        "CIRCLE_BUILD_URL": "https://circleci.com/gh/org/backend/7",
        "CRCR_CONCLUSION": "failed",
    },
}
NAMES = {"buildkite": ":linux: build", "gitlab": "build 1/2", "circleci": "build (2/4)"}


def issue_token(github: GitHub, ci: str) -> str:
    if ci == "buildkite":
        return github.buildkite.token(AUDIENCE, wanted=("organization_id", "pipeline_id"))
    if ci == "gitlab":
        return github.gitlab.token(AUDIENCE)
    return github.circleci.token(AUDIENCE, vcs_origin=f"github.com/{BACKEND}", workflow_id="wf-1")


def program(folder: Path, name: str, expected_args: list[str], token: str) -> str:
    """A CI's own program, which prints the token when it is called with exactly these arguments."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-c", "import json,sys; sys.exit(sys.argv[2:] != json.loads(sys.argv[1]))"]
    quoted = " ".join(f"'{word}'" for word in [*words, json.dumps(expected_args)])
    path.write_text(f"#!/bin/sh\n{quoted} \"$@\" && echo '{token}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{path.parent}:/usr/bin:/bin"


def token_environment(folder: Path, ci: str, token: str) -> dict[str, str]:
    """The environment from which a job of that CI gets its token."""
    if ci == "buildkite":
        words = ["oidc", "request-token", "--audience", AUDIENCE, "--claim", "organization_id,pipeline_id"]
        return {"PATH": program(folder, "buildkite-agent", words, token)}
    if ci == "circleci":
        words = ["run", "oidc", "get", "--claims", json.dumps({"aud": AUDIENCE})]
        return {"PATH": program(folder, "circleci", words, token)}
    return {"CRCR_ID_TOKEN": token}


async def test_github_two_short_steps_report_a_job(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "junit.xml").write_text(JUNIT)
    async with reporter_setup(tmp_path) as setup:
        env = setup.github_env("build")
        code, output = await setup.report("--strict", env={**env, "CRCR_STATUS": "in_progress"})
        assert (code, setup.results()) == (0, {"build": "in_progress"}), output
        setup.relay.clock.advance(300)
        more = {"CRCR_STATUS": "completed", "CRCR_CONCLUSION": "failure", "CRCR_JUNIT": "results/**/*.xml"}
        code, output = await setup.report("--strict", env={**env, **more})
        assert (code, setup.results()) == (0, {"build": "failure"}), output

        [job] = setup.relay.jobs(BACKEND)
        assert (job["execution_s"], job_marks(job)) == (300, set())
        assert (job["tests_passed"], job["tests_failed"], job["tests_skipped"]) == (1, 1, 1)
        failed = json.loads(job["failed_tests"])
        assert failed == [{"name": "TestOps.mul", "file": "test_ops.py", "message": "1 != 2"}]
        assert "recorded: build is completed (failure)" in output


async def test_github_a_lost_start_is_sent_late_before_the_result(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        code, output = await setup.report(
            "--strict", "--status", "completed", "--conclusion", "success", env=setup.github_env()
        )
        assert (code, setup.results()) == (0, {"build": "success"}), output
        [job] = setup.relay.jobs(BACKEND)
        assert job["queue_s"] is None
        assert "marked late" in output


async def test_github_a_second_workflow_gets_the_delivery_as_inputs(tmp_path: Path) -> None:
    allowlist = f"L2:\n  - {BACKEND}: {{allow_events: [workflow_dispatch]}}\n"
    async with reporter_setup(tmp_path, allowlist) as setup:
        dispatch = setup.dispatch_env()
        inputs = {name[5:].lower(): value for name, value in dispatch.items()}
        setup.run.event = "workflow_dispatch"
        env = setup.github_env(GITHUB_EVENT_NAME="workflow_dispatch")
        env["GITHUB_EVENT_PATH"] = str(setup.event_file("inputs.json", inputs=inputs))
        code, output = await setup.report("--strict", "--status", "in_progress", env=env)
        assert (code, setup.results()) == (0, {"build": "in_progress"}), output


@pytest.mark.parametrize("ci", REGISTERED)
async def test_another_ci_reports_with_its_own_token_and_variables(tmp_path: Path, ci: str) -> None:
    github = {"issuer": SIM.issuer_url, "kind": "github", "jwks_url": SIM.jwks_url}
    registration = {"repository": BACKEND, "kind": ci, **REGISTERED[ci]}
    more = {
        "CRCR_OIDC_ISSUERS": json.dumps([github]),
        "CRCR_OIDC_REGISTRATIONS": json.dumps([registration]),
    }
    async with reporter_setup(tmp_path, LISTED, **more) as setup:
        own = token_environment(tmp_path, ci, issue_token(setup.relay.github, ci))
        env = {**ENVIRONMENTS[ci], **setup.dispatch_env(), **own}
        for status in ("in_progress", "completed"):
            code, output = await setup.report("--strict", "--status", status, env=env)
            assert code == 0, output
            assert setup.relay.github.issuer_url not in output
        assert setup.results() == {NAMES[ci]: "failure"}
        [job] = setup.relay.jobs(BACKEND)
        assert job["run_id"] in (
            env.get("BUILDKITE_BUILD_ID"),
            env.get("CI_PIPELINE_ID"),
            env.get("CIRCLE_WORKFLOW_ID"),
        )


async def test_any_other_ci_reports_by_flags(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        job = setup.run.job("test")
        token = tmp_path / "token"
        token.write_text(setup.relay.github.oidc_token(setup.run, job, audience=AUDIENCE) + "\n")
        words = [
            "--run-id",
            str(setup.run.id),
            "--workflow-name",
            "CI",
            "--job-name",
            "test",
            "--token-file",
            str(token),
        ]
        for status in (["in_progress"], ["completed", "--conclusion", "0"]):
            code, output = await setup.report(
                "--strict", *words, "--status", *status, env=setup.dispatch_env()
            )
            assert code == 0, output
        assert setup.results() == {"test": "success"}


async def test_a_refusal_is_printed_and_fails_the_build_only_with_strict(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        env = setup.github_env(CRCR_STATUS="in_progress", CRCR_DELIVERY_ID="made-up")
        code, output = await setup.report(env=env)
        assert code == 0
        assert "::warning title=CRCR relay::not recorded (404 unknown_delivery)" in output
        assert "delivery made-up was not dispatched" in output
        code, output = await setup.report("--strict", env=env)
        assert code == 1
        assert "::error title=CRCR relay::" in output
        assert setup.results() == {}


async def test_a_report_at_level_one_is_ignored_with_a_notice(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, f"L1:\n  - {BACKEND}\n") as setup:
        code, output = await setup.report("--strict", "--status", "in_progress", env=setup.github_env())
        assert code == 0
        assert "::notice title=CRCR relay::the relay ignores this report: L1" in output


async def test_a_matrix_leg_without_its_own_name_gets_a_numbered_name_and_a_notice(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        for job in ("build", "test"):
            env = setup.github_env(job, CRCR_JOB_NAME="leg", CRCR_STATUS="in_progress")
            code, output = await setup.report("--strict", env=env)
            assert code == 0
        assert "It is recorded as 'leg (2)'" in output
        assert set(setup.results()) == {"leg", "leg (2)"}


def visible_log(output: str) -> str:
    """The log as shown by GitHub: the runner removes the line that masks the token."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("::add-mask::"))


async def test_the_token_is_masked_and_never_printed(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        env = setup.github_env(CRCR_STATUS="in_progress")
        _, output = await setup.report(env=env)
        [masked] = [line for line in output.splitlines() if line.startswith("::add-mask::")]
        token = masked.removeprefix("::add-mask::")
        assert token.count(".") == 2
        assert token not in visible_log(output)
        assert env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] not in output


async def test_a_dry_run_prints_the_report_and_requests_no_token(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as setup:
        env = setup.github_env("build", CRCR_STATUS="completed", CRCR_CONCLUSION="success")
        code, output = await setup.report("--strict", "--dry-run", env=env)
        assert code == 0
        assert f"would be sent to {setup.url}/github/callback" in output
        body = json.loads(output[output.index("\n{") :])
        assert (body["delivery_id"], body["payload"]) == (setup.run.delivery_id, {})
        assert body["workflow"]["run_id"] == str(setup.run.id)
        assert setup.relay.github.request_tokens.minted == {}
        assert setup.results() == {}


async def test_a_nightly_is_recorded_with_the_commit_that_it_names(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, workflows=NIGHTLY) as setup:
        commit = setup.relay.github.repository(UPSTREAM).head_sha
        setup.run = setup.relay.github.start_run(BACKEND, event="schedule")
        env = setup.github_env(
            GITHUB_EVENT_NAME="schedule", CRCR_EVENT_TYPE="nightly", CRCR_UPSTREAM=UPSTREAM
        )
        env |= {
            "GITHUB_EVENT_PATH": str(setup.event_file("schedule.json", schedule="0 3 * * *")),
            "CRCR_HEAD_SHA": commit,
        }
        for words in (["in_progress"], ["completed", "--conclusion", "success"]):
            code, output = await setup.report("--strict", "--status", *words, env=env)
            assert code == 0, output
        assert setup.results() == {"build": "success"}
        await setup.relay.drain()


async def test_a_report_to_the_sandbox_says_that_it_does_not_count(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, CRCR_SANDBOX="on") as setup:
        setup.relay.write_allowlist("L2:\n  - org/other\n")
        await setup.relay.refresh()
        code, output = await setup.report("--strict", "--status", "in_progress", env=setup.github_env())
        assert code == 0, output
        assert "sandbox" in output
