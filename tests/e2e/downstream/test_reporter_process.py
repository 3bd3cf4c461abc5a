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


def program(folder: Path, name: str, wanted: list[str], token: str) -> str:
    """A CI's own program, which gives the token when it is asked with exactly these words."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-c", "import json,sys; sys.exit(sys.argv[2:] != json.loads(sys.argv[1]))"]
    quoted = " ".join(f"'{word}'" for word in [*words, json.dumps(wanted)])
    path.write_text(f"#!/bin/sh\n{quoted} \"$@\" && echo '{token}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{path.parent}:/usr/bin:/bin"


def asking(folder: Path, ci: str, token: str) -> dict[str, str]:
    """How the job of that CI comes to its token."""
    if ci == "buildkite":
        words = ["oidc", "request-token", "--audience", AUDIENCE, "--claim", "organization_id,pipeline_id"]
        return {"PATH": program(folder, "buildkite-agent", words, token)}
    if ci == "circleci":
        words = ["run", "oidc", "get", "--claims", json.dumps({"aud": AUDIENCE})]
        return {"PATH": program(folder, "circleci", words, token)}
    return {"CRCR_ID_TOKEN": token}


async def test_github_two_short_steps_are_all_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "junit.xml").write_text(JUNIT)
    async with reporter_setup(tmp_path) as world:
        env = world.github_env("build")
        code, said = await world.report("--strict", env={**env, "CRCR_STATUS": "in_progress"})
        assert (code, world.results()) == (0, {"build": "in_progress"}), said
        world.relay.clock.advance(300)
        more = {"CRCR_STATUS": "completed", "CRCR_CONCLUSION": "failure", "CRCR_JUNIT": "results/**/*.xml"}
        code, said = await world.report("--strict", env={**env, **more})
        assert (code, world.results()) == (0, {"build": "failure"}), said

        [job] = world.relay.jobs(BACKEND)
        assert (job["execution_s"], job_marks(job)) == (300, set())
        assert (job["tests_passed"], job["tests_failed"], job["tests_skipped"]) == (1, 1, 1)
        failed = json.loads(job["failed_tests"])
        assert failed == [{"name": "TestOps.mul", "file": "test_ops.py", "message": "1 != 2"}]
        assert "recorded: build is completed (failure)" in said


async def test_github_a_lost_start_is_sent_late_before_the_result(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        code, said = await world.report(
            "--strict", "--status", "completed", "--conclusion", "success", env=world.github_env()
        )
        assert (code, world.results()) == (0, {"build": "success"}), said
        [job] = world.relay.jobs(BACKEND)
        assert job["queue_s"] is None
        assert "marked late" in said


async def test_github_a_second_workflow_is_handed_the_delivery_as_inputs(tmp_path: Path) -> None:
    allowlist = f"L2:\n  - {BACKEND}: {{allow_events: [workflow_dispatch]}}\n"
    async with reporter_setup(tmp_path, allowlist) as world:
        dispatch = world.dispatch_env()
        inputs = {name[5:].lower(): value for name, value in dispatch.items()}
        world.run.event = "workflow_dispatch"
        env = world.github_env(GITHUB_EVENT_NAME="workflow_dispatch")
        env["GITHUB_EVENT_PATH"] = str(world.event_file("inputs.json", inputs=inputs))
        code, said = await world.report("--strict", "--status", "in_progress", env=env)
        assert (code, world.results()) == (0, {"build": "in_progress"}), said


@pytest.mark.parametrize("ci", REGISTERED)
async def test_another_ci_reports_with_its_own_token_and_words(tmp_path: Path, ci: str) -> None:
    github = {"issuer": SIM.issuer_url, "kind": "github", "jwks_url": SIM.jwks_url}
    registration = {"repository": BACKEND, "kind": ci, **REGISTERED[ci]}
    more = {
        "CRCR_OIDC_ISSUERS": json.dumps([github]),
        "CRCR_OIDC_REGISTRATIONS": json.dumps([registration]),
    }
    async with reporter_setup(tmp_path, LISTED, **more) as world:
        own = asking(tmp_path, ci, issue_token(world.relay.github, ci))
        env = {**ENVIRONMENTS[ci], **world.dispatch_env(), **own}
        for status in ("in_progress", "completed"):
            code, said = await world.report("--strict", "--status", status, env=env)
            assert code == 0, said
            assert world.relay.github.issuer_url not in said
        assert world.results() == {NAMES[ci]: "failure"}
        [job] = world.relay.jobs(BACKEND)
        assert job["run_id"] in (
            env.get("BUILDKITE_BUILD_ID"),
            env.get("CI_PIPELINE_ID"),
            env.get("CIRCLE_WORKFLOW_ID"),
        )


async def test_any_other_ci_reports_by_flags(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        job = world.run.job("test")
        token = tmp_path / "token"
        token.write_text(world.relay.github.oidc_token(world.run, job, audience=AUDIENCE) + "\n")
        words = [
            "--run-id",
            str(world.run.id),
            "--workflow-name",
            "CI",
            "--job-name",
            "test",
            "--token-file",
            str(token),
        ]
        for status in (["in_progress"], ["completed", "--conclusion", "0"]):
            code, said = await world.report("--strict", *words, "--status", *status, env=world.dispatch_env())
            assert code == 0, said
        assert world.results() == {"test": "success"}


async def test_a_refusal_is_told_and_turns_the_build_red_only_when_asked_to(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        env = world.github_env(CRCR_STATUS="in_progress", CRCR_DELIVERY_ID="made-up")
        code, said = await world.report(env=env)
        assert code == 0
        assert "::warning title=CRCR relay::not recorded (404 unknown_delivery)" in said
        assert "delivery made-up was not dispatched" in said
        code, said = await world.report("--strict", env=env)
        assert code == 1
        assert "::error title=CRCR relay::" in said
        assert world.results() == {}


async def test_at_level_one_a_report_is_ignored_and_says_so(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, f"L1:\n  - {BACKEND}\n") as world:
        code, said = await world.report("--strict", "--status", "in_progress", env=world.github_env())
        assert code == 0
        assert "::notice title=CRCR relay::the relay ignores this report: L1" in said


async def test_a_leg_without_its_own_name_is_told_what_it_is_called_now(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        for job in ("build", "test"):
            env = world.github_env(job, CRCR_JOB_NAME="leg", CRCR_STATUS="in_progress")
            code, said = await world.report("--strict", env=env)
            assert code == 0
        assert "It is recorded as 'leg (2)'" in said
        assert set(world.results()) == {"leg", "leg (2)"}


def visible_log(said: str) -> str:
    """What a reader of GitHub's log sees: the line that hides the token is taken out by the runner."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("::add-mask::"))


async def test_the_token_is_hidden_and_never_said(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        env = world.github_env(CRCR_STATUS="in_progress")
        _, said = await world.report(env=env)
        [masked] = [line for line in said.splitlines() if line.startswith("::add-mask::")]
        token = masked.removeprefix("::add-mask::")
        assert token.count(".") == 2
        assert token not in visible_log(said)
        assert env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] not in said


async def test_dry_run_shows_the_report_and_asks_for_no_token(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path) as world:
        env = world.github_env("build", CRCR_STATUS="completed", CRCR_CONCLUSION="success")
        code, said = await world.report("--strict", "--dry-run", env=env)
        assert code == 0
        assert f"would be sent to {world.url}/github/callback" in said
        body = json.loads(said[said.index("\n{") :])
        assert (body["delivery_id"], body["payload"]) == (world.run.delivery_id, {})
        assert body["workflow"]["run_id"] == str(world.run.id)
        assert world.relay.github.request_tokens.minted == {}
        assert world.results() == {}


async def test_a_nightly_is_recorded_with_the_commit_that_it_names(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, workflows=NIGHTLY) as world:
        commit = world.relay.github.repository(UPSTREAM).head_sha
        world.run = world.relay.github.start_run(BACKEND, event="schedule")
        env = world.github_env(
            GITHUB_EVENT_NAME="schedule", CRCR_EVENT_TYPE="nightly", CRCR_UPSTREAM=UPSTREAM
        )
        env |= {
            "GITHUB_EVENT_PATH": str(world.event_file("schedule.json", schedule="0 3 * * *")),
            "CRCR_HEAD_SHA": commit,
        }
        for words in (["in_progress"], ["completed", "--conclusion", "success"]):
            code, said = await world.report("--strict", "--status", *words, env=env)
            assert code == 0, said
        assert world.results() == {"build": "success"}
        await world.relay.drain()


async def test_a_sandbox_says_that_it_counts_for_nothing(tmp_path: Path) -> None:
    async with reporter_setup(tmp_path, CRCR_SANDBOX="on") as world:
        world.relay.write_allowlist("L2:\n  - org/other\n")
        await world.relay.refresh()
        code, said = await world.report("--strict", "--status", "in_progress", env=world.github_env())
        assert code == 0, said
        assert "sandbox" in said
