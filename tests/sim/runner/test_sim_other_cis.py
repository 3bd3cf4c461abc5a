"""Minimal simulations of other CIs: their APIs, the reading of their files, and the permissions of their jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from github_sim.github import GitHub
from github_sim.runner.yaml_text import WorkflowError
from support.downstream.workflow_runs import DOWNSTREAM, RunnerHarness, runner_harness
from support.other_cis.builds import Project
from support.other_cis.circleci import condition_holds, fill_parameters
from support.other_cis.gitlab import rule_holds as gitlab_holds
from support.other_cis.projects import OtherCis

pytestmark = pytest.mark.slow

BUILDKITE = """
steps:
  - {key: first, command: 'echo "$$COLOUR $SHAPE at $$BUILDKITE_STEP_KEY"', artifact_paths: "out/*"}
  - key: build
    depends_on: first
    if: build.env("COLOUR") != "grey"
    command: |
      mkdir out && echo kept > out/a.txt
      test "$$COLOUR" = green
    artifact_paths: "out/*"
  - key: last
    depends_on: [{step: build, allow_failure: true}]
    command:
      - buildkite-agent step get outcome --step build || true
      - buildkite-agent artifact download 'out/*' got/ --step build && cat got/out/a.txt || true
      - buildkite-agent oidc request-token --audience me --claim pipeline_id
  - {key: never, depends_on: build, command: "true"}
"""
GITLAB = """
variables: {SHAPE: round}
.all: {stage: test, variables: {ONE: a, TWO: b}, rules: [{if: '$CI_PIPELINE_SOURCE == "trigger"'}]}
build:
  extends: .all
  variables: {TWO: "$SHAPE-$COLOUR"}
  script: ['echo "$ONE $TWO $COLOUR"', 'test "$COLOUR" = green']
  artifacts: {when: always, paths: ["out/*"]}
  before_script: [mkdir out, 'echo kept > out/a.txt']
passed: {extends: .all, needs: [build], script: [cat out/a.txt]}
failed: {extends: .all, needs: [build], script: ['echo "$TOKEN"'], id_tokens: {TOKEN: {aud: me}},
  rules: [{if: $COLOUR, when: on_failure}]}
left-out: {script: ["true"], rules: [{if: '$COLOUR == "grey"'}]}
"""
CIRCLECI = """
version: 2.1
parameters: {colour: {type: string, default: ""}}
jobs:
  say:
    parameters: {word: {type: string, default: hi}}
    docker: [{image: x}]
    environment: {WORD: << parameters.word >>, COLOUR: << pipeline.parameters.colour >>}
    steps: [{run: 'echo "$WORD $COLOUR $CIRCLE_JOB"'}, {run: "circleci run oidc get --claims '{\\"aud\\":\\"me\\"}'"}]
  build:
    machine: {image: x}
    steps: [checkout, {run: {command: test "<< pipeline.parameters.colour >>" = green}}, {run: {when: on_fail, command: echo sad}}]
workflows:
  one:
    when: {and: [<< pipeline.parameters.colour >>, {not: {equal: [grey, << pipeline.parameters.colour >>]}}]}
    jobs:
      - say: {name: start, context: crcr}
      - build: {requires: [start]}
      - say: {name: good, word: yes, requires: [build]}
      - say: {name: bad, word: no, requires: [{build: [failed]}]}
"""
FILES = {
    ".buildkite/crcr.yml": BUILDKITE,
    ".gitlab-ci.yml": GITLAB,
    ".circleci/crcr.yml": CIRCLECI,
    "x/y": "",
}
PLACES = {
    "buildkite": ("acme-inc", "backend"),
    "gitlab": ("20617", "acme/backend"),
    "circleci": ("gh/acme/b", ""),
}
PERSISTS_ALWAYS = """
jobs: {a: {steps: [{persist_to_workspace: {root: ., paths: [b], when: always}}]}}
workflows: {c: {jobs: [a]}}
"""


@asynccontextmanager
async def project(
    github: GitHub, folder: Path, ci: str, **files: str
) -> AsyncIterator[tuple[RunnerHarness, OtherCis, Project]]:
    async with runner_harness(github, folder, {**FILES, **files}) as harness:
        joined = harness.runner.join(github.repository(DOWNSTREAM), folder)
        cis = OtherCis(harness.runner)
        yield harness, cis, cis.connect(ci, joined, PLACES[ci])


async def run_build(
    github: GitHub, folder: Path, ci: str, **variables: str
) -> tuple[dict[str, str], dict[str, str]]:
    """The final states of a build's jobs, and their logs."""
    async with project(github, folder, ci) as (harness, cis, made):
        build = cis.start(made, variables)
        await harness.runner.settle()
        assert harness.runner.problems == []
    return (
        {name: job.state for name, job in build.jobs.items()},
        {name: job.log for name, job in build.jobs.items()},
    )


def claims(log: str) -> dict[str, Any]:
    token = next(word for word in log.split() if word.startswith("eyJ"))
    token_claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return token_claims


@pytest.mark.parametrize(
    ("colour", "ended", "outcome"),
    [("green", "passed", "passed"), ("red", "failed", "hard_failed")],
)
async def test_buildkite_steps_conditions_artifacts_and_tokens(
    github: GitHub, tmp_path: Path, colour: str, ended: str, outcome: str
) -> None:
    states, logs = await run_build(github, tmp_path, "buildkite", COLOUR=colour, SHAPE="round")
    never = "passed" if ended == "passed" else "skipped"
    assert states == {"first": "passed", "build": ended, "last": "passed", "never": never}
    assert f"{colour} round at first" in logs["first"]
    assert logs["last"].startswith(f"{outcome}\nkept\n")
    token_claims = claims(logs["last"])
    assert (token_claims["aud"], token_claims["step_key"], token_claims["pipeline_id"]) == (
        "me",
        "last",
        github.buildkite.pipeline_id,
    )
    assert "organization_id" not in token_claims


async def test_a_buildkite_step_skipped_by_its_condition_blocks_no_other(
    github: GitHub, tmp_path: Path
) -> None:
    states, _ = await run_build(github, tmp_path, "buildkite", COLOUR="grey")
    assert states == {"first": "passed", "last": "passed", "never": "passed"}


async def test_gitlab_jobs_after_a_success(github: GitHub, tmp_path: Path) -> None:
    states, logs = await run_build(github, tmp_path, "gitlab", COLOUR="green")
    assert states == {"build": "passed", "passed": "passed", "failed": "skipped"}
    assert "a round-green green" in logs["build"]
    assert "kept" in logs["passed"]


async def test_gitlab_jobs_after_a_failure(github: GitHub, tmp_path: Path) -> None:
    states, logs = await run_build(github, tmp_path, "gitlab", COLOUR="red")
    assert states == {"build": "failed", "passed": "skipped", "failed": "passed"}
    token_claims = claims(logs["failed"])
    assert (token_claims["aud"], token_claims["project_id"], token_claims["pipeline_source"]) == (
        "me",
        "20617",
        "trigger",
    )


async def test_variables_of_a_trigger_override_those_of_the_file(github: GitHub, tmp_path: Path) -> None:
    _, logs = await run_build(github, tmp_path, "gitlab", COLOUR="green", ONE="told")
    assert "told round-green" in logs["build"]


@pytest.mark.parametrize(
    ("colour", "good", "bad"), [("green", "passed", "skipped"), ("red", "skipped", "passed")]
)
async def test_circleci_parameters_requirements_and_contexts(
    github: GitHub, tmp_path: Path, colour: str, good: str, bad: str
) -> None:
    states, logs = await run_build(github, tmp_path, "circleci", colour=colour)
    ended = "passed" if colour == "green" else "failed"
    assert states == {"start": "passed", "build": ended, "good": good, "bad": bad}
    assert f"hi {colour} start" in logs["start"]
    assert ("sad" in logs["build"]) == (colour == "red")
    assert claims(logs["start"])["oidc.circleci.com/context-ids"] == [github.circleci.context_id()]
    other = logs["good"] + logs["bad"]
    assert claims(other)["oidc.circleci.com/context-ids"] == []


async def test_circleci_starts_no_job_when_its_condition_is_false(github: GitHub, tmp_path: Path) -> None:
    assert (await run_build(github, tmp_path, "circleci", colour="grey"))[0] == {}
    with pytest.raises(WorkflowError, match="shape"):
        await run_build(github, tmp_path / "other", "circleci", shape="round")


@pytest.mark.parametrize(
    ("ci", "path", "body"),
    [
        (
            "buildkite",
            "/v2/organizations/acme-inc/pipelines/backend/builds",
            {"commit": "HEAD", "branch": "main"},
        ),
        ("gitlab", "/api/v4/projects/20617/trigger/pipeline", {"ref": "main"}),
        ("circleci", "/api/v2/project/gh/acme/b/pipeline", {"branch": "main"}),
    ],
)
async def test_a_build_can_be_started_only_with_the_token(
    github: GitHub, tmp_path: Path, ci: str, path: str, body: dict[str, Any]
) -> None:
    async with project(github, tmp_path, ci) as (harness, cis, made), httpx.AsyncClient() as http:
        for token, status in (("guessed", 401), (made.token, 201)):
            headers = {"Authorization": f"Bearer {token}", "Circle-Token": token}
            answer = await http.post(
                f"{github.base_url}/_{ci}{path}", json={**body, "token": token}, headers=headers
            )
            assert answer.status_code == status
        await harness.runner.settle()
        assert len(cis.builds) == 1


async def test_a_buildkite_job_gets_no_token_after_its_end(github: GitHub, tmp_path: Path) -> None:
    pipeline = 'steps: [{key: a, command: "echo $$BUILDKITE_AGENT_ACCESS_TOKEN $$BUILDKITE_JOB_ID"}]'
    async with project(github, tmp_path, "buildkite", **{".buildkite/crcr.yml": pipeline}) as (
        harness,
        cis,
        made,
    ):
        build = cis.start(made, {})
        await harness.runner.settle()
        secret, job = build.jobs["a"].log.split()
        address = f"{github.buildkite.url}/v3/jobs/{job}/oidc/tokens"
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                address, json={"audience": "me"}, headers={"authorization": f"Token {secret}"}
            )
        assert answer.status_code == 401


@pytest.mark.parametrize(
    ("ci", "path", "text", "words"),
    [
        ("buildkite", ".buildkite/crcr.yml", "steps: [{key: a, plugins: [], command: b}]", "plugins"),
        ("buildkite", ".buildkite/crcr.yml", "steps: [{key: a, if: 'x =~ y', command: b}]", "x =~ y"),
        ("buildkite", ".buildkite/crcr.yml", "steps: [{key: a, command: '${A:-b}'}]", "cannot read"),
        ("gitlab", ".gitlab-ci.yml", "a: {script: [b], needs: [c]}", "does not exist in the pipeline"),
        ("gitlab", ".gitlab-ci.yml", "a: {script: [b], trigger: c}", "trigger"),
        ("gitlab", ".gitlab-ci.yml", "include: {remote: 'https://x'}", "not local"),
        ("gitlab", ".gitlab-ci.yml", "a: {script: [b], rules: [{if: '$A =~ /b/'}]}", "cannot read"),
        ("buildkite", ".buildkite/crcr.yml", "steps: [{key: a, command: b, soft_fail: true}]", "soft_fail"),
        ("buildkite", ".buildkite/crcr.yml", "steps: [{key: a, command: b, concurrency: 1}]", "concurrency"),
        ("gitlab", ".gitlab-ci.yml", "a: {script: [b], after_script: [c]}", "after_script"),
        ("circleci", ".circleci/crcr.yml", "orbs: {a: b}", "orbs"),
        ("circleci", ".circleci/crcr.yml", PERSISTS_ALWAYS, "when"),
        ("circleci", ".circleci/crcr.yml", "jobs: {}\nworkflows: {a: {when: {xor: []}, jobs: []}}", "xor"),
    ],
)
async def test_an_unsupported_feature_is_reported(
    github: GitHub, tmp_path: Path, ci: str, path: str, text: str, words: str
) -> None:
    async with project(github, tmp_path, ci, **{path: text}) as (harness, cis, made):
        with pytest.raises(WorkflowError, match=words.replace("$", r"\$")):
            cis.start(made, {})
        assert len(harness.runner.problems) == 1


def test_conditions_and_parameters_are_evaluated() -> None:
    values = {"A": "x", "EMPTY": ""}
    assert gitlab_holds('$A == "x" && $B == null || $EMPTY', values)
    assert not gitlab_holds("$EMPTY || $B", values)
    assert gitlab_holds('$A != "y" && $A', values)
    assert condition_holds({"or": ["", {"and": ["a", {"not": {"equal": [1, 2]}}]}]})
    assert fill_parameters({"a": ["<< x >>", "b << x >>"]}, {"x": True}) == {"a": [True, "b True"]}
