"""Permissions of a simulated job: tokens only with the permission and only while it runs; foreign text is never code."""

import re
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from github_sim.github import GitHub
from support.downstream.workflow_runs import job_conclusions, job_log, one_job, runner_harness, workflow

pytestmark = pytest.mark.slow

ASK = """
- run: |
    curl -sS -H "Authorization: Bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \\
      "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=crcr-test"
"""
LEAK = '- run: echo "$ACTIONS_ID_TOKEN_REQUEST_URL $ACTIONS_ID_TOKEN_REQUEST_TOKEN"'


def job(permissions: str, steps: str = ASK) -> str:
    body = "".join(f"    {line}\n" for line in steps.strip("\n").splitlines())
    return f"build:\n  runs-on: x\n{permissions}  steps:\n{body}"


async def test_a_job_with_the_permission_gets_its_own_token(github: GitHub, tmp_path: Path) -> None:
    async with runner_harness(
        github, tmp_path, workflow(job("  permissions: {id-token: write}\n"))
    ) as harness:
        run = await harness.ran()
    response = re.search(r'"value": "([^"]+)", "count": 1', job_log(run))
    assert response is not None
    claims: dict[str, Any] = jwt.decode(response[1], options={"verify_signature": False})
    assert (claims["aud"], claims["run_id"]) == ("crcr-test", str(run.id))
    assert claims["check_run_id"] == str(run.job("build").id)
    assert claims["repository"] == "acme/runs"


@pytest.mark.parametrize(
    ("head", "permissions", "may"),
    [
        ("", "", False),
        ("permissions: {}\n", "", False),
        ("permissions: {id-token: write}\n", "", True),
        ("permissions: {id-token: write}\n", "  permissions: {}\n", False),
        ("permissions: {id-token: write}\n", "  permissions: {contents: read}\n", False),
        ("permissions: read-all\n", "", False),
        ("permissions: write-all\n", "", True),
        ("permissions: {id-token: read}\n", "", False),
    ],
)
async def test_the_id_token_permission_decides_about_request_tokens(
    github: GitHub, tmp_path: Path, head: str, permissions: str, may: bool
) -> None:
    files = workflow(job(permissions, LEAK), head=f"on: repository_dispatch\n{head}")
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran()
    assert ("http://" in job_log(run)) == may


async def test_a_request_token_is_valid_only_for_its_job_and_while_it_runs(
    github: GitHub, tmp_path: Path
) -> None:
    jobs = job("  permissions: {id-token: write}\n", LEAK)
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness, httpx.AsyncClient() as http:
        address, token = job_log(await harness.ran()).split()
        late = await http.get(address, headers={"authorization": f"Bearer {token}"})
        assert late.status_code == 401
        run = github.start_run("acme/backend", event="repository_dispatch")
        running = run.jobs[0]
        github.ci.start(run, running)
        granted = github.request_tokens.issue(run, running)
        other = await http.get(address, headers={"authorization": f"Bearer {granted}"})
        assert other.status_code == 401
        own = f"{github.base_url}/_services/token/request?run={run.id}&job={running.id}"
        assert (await http.get(own)).status_code == 401
        assert (await http.get(own, headers={"authorization": f"Bearer {granted}"})).status_code == 200


async def test_foreign_text_is_never_evaluated_as_an_expression(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    build:
      runs-on: x
      env: {TITLE: "${{ github.event.client_payload.title }}"}
      steps:
        - run: printf '%s\\n' "$TITLE"
        - {env: {AGAIN: "${{ env.TITLE }}"}, run: 'printf "%s\\n" "$AGAIN"'}
        - {id: out, run: 'echo "title=$TITLE" >> "$GITHUB_OUTPUT"'}
        - {env: {OUT: "${{ steps.out.outputs.title }}"}, run: 'printf "%s\\n" "$OUT"'}
    """
    title = "${{ secrets.TOKEN }} $(id) `id` }} ${{ fromJSON('x') }}"
    async with runner_harness(github, tmp_path, workflow(jobs), secrets={"TOKEN": "hidden-value"}) as harness:
        run = await harness.ran(title=title)
    assert job_log(run).splitlines().count(title) == 3
    assert job_conclusions(run) == {"build": "success"}


async def test_an_expression_in_a_script_is_executed_by_the_shell(github: GitHub, tmp_path: Path) -> None:
    """The mistake that generated workflows must not make; this test shows that the runner would reveal it."""
    files = one_job('echo "${{ github.event.client_payload.title }}"')
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran(title='"; echo pwn"ed"; echo "')
    assert "pwned" in job_log(run)


async def test_secrets_are_masked_in_logs(github: GitHub, tmp_path: Path) -> None:
    files = one_job('echo "${{ secrets.TOKEN }}"', "echo ::add-mask::made-here; echo made-here")
    async with runner_harness(github, tmp_path, files, secrets={"TOKEN": "hidden-value"}) as harness:
        run = await harness.ran()
    assert "hidden-value" not in job_log(run)
    assert "made-here" not in job_log(run)
    assert "***" in job_log(run)


async def test_variables_of_github_cannot_be_replaced(github: GitHub, tmp_path: Path) -> None:
    more = "env: {GITHUB_RUN_ID: '1', GITHUB_REPOSITORY: other/one}"
    files = one_job(
        'echo GITHUB_SHA=1 >> "$GITHUB_ENV"',
        'echo "$GITHUB_RUN_ID $GITHUB_REPOSITORY $GITHUB_SHA"',
        more=more,
    )
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran()
    assert f"{run.id} acme/runs {run.head_sha}" in job_log(run)


@pytest.mark.parametrize("path", ["../../other", "/etc"])
async def test_a_path_cannot_leave_the_workspace(github: GitHub, tmp_path: Path, path: str) -> None:
    jobs = f"build:\n  runs-on: x\n  steps:\n    - {{uses: actions/checkout@v4, with: {{path: {path}}}}}"
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "failure"}
    assert "leads out of the workspace" in job_log(run)


async def test_symlinks_and_git_folders_are_not_joined(github: GitHub, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("private")
    folder = tmp_path / "folder"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/config").write_text("[remote]")
    (folder / "link").symlink_to(outside)
    jobs = "build:\n  runs-on: x\n  steps:\n    - uses: actions/checkout@v4\n    - run: find . -type f -o -type l"
    async with runner_harness(github, folder, workflow(jobs)) as harness:
        run = await harness.ran()
    assert "link" not in job_log(run)
    assert ".git/config" not in job_log(run)
    assert set(github.repository("acme/runs").commits[run.head_sha].tree) == {
        "README.md",
        ".github/workflows/ci.yml",
    }
