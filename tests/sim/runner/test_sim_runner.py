"""The simulated runner: workflow files are really run, with GitHub's environment for a job and nothing else."""

from pathlib import Path

import pytest

from github_sim.github import GitHub
from github_sim.runner.yaml_text import WorkflowError
from support.downstream.workflow_runs import (
    job_conclusions,
    job_log,
    job_steps,
    one_job,
    runner_harness,
    workflow,
)

pytestmark = pytest.mark.slow


async def test_a_dispatch_runs_the_steps_in_a_real_shell(github: GitHub, tmp_path: Path) -> None:
    files = one_job('echo "sum $((2 + 3))"')
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "success"}
    assert "sum 5" in job_log(run)
    assert harness.runner.problems == []
    github.finish()


async def test_only_workflows_that_listen_to_the_event_run(github: GitHub, tmp_path: Path) -> None:
    async with runner_harness(github, tmp_path, one_job("true")) as harness:
        assert harness.dispatch("push") == []
        assert len(harness.dispatch("pull_request")) == 1


async def test_a_job_has_githubs_variables_and_none_of_ours(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "do-not-tell")
    files = one_job("env | sort", 'cat "$GITHUB_EVENT_PATH"')
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran(delivery_id="d-1", payload={"number": 7})
    log = job_log(run)
    for expected in (
        "GITHUB_ACTIONS=true",
        "CI=true",
        "GITHUB_EVENT_NAME=repository_dispatch",
        f"GITHUB_RUN_ID={run.id}",
        "GITHUB_RUN_ATTEMPT=1",
        "GITHUB_JOB=build",
        "GITHUB_REPOSITORY=acme/runs",
        "GITHUB_REF=refs/heads/main",
        '"delivery_id": "d-1"',
    ):
        assert expected in log
    assert "OUR_SECRET" not in log
    assert "ACTIONS_ID_TOKEN_REQUEST" not in log


async def test_a_failing_step_ends_the_job_except_for_steps_with_a_condition(
    github: GitHub, tmp_path: Path
) -> None:
    jobs = """
    build:
      runs-on: x
      steps:
        - run: exit 3
        - run: echo never
        - {if: always(), run: 'echo "status ${{ job.status }}"'}
        - {if: failure(), run: echo failed}
        - {if: success(), run: echo never}
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "failure"}
    assert [step.conclusion for step in job_steps(run)] == [
        "failure",
        "skipped",
        "success",
        "success",
        "skipped",
    ]
    assert "status failure" in job_log(run)


async def test_outputs_and_variables_reach_later_steps_and_jobs(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    first:
      runs-on: x
      outputs: {what: "${{ steps.make.outputs.what }}"}
      steps:
        - id: make
          run: |
            printf 'what<<E\\none\\ntwo\\nE\\n' >> "$GITHUB_OUTPUT"
            echo "COLOUR=red" >> "$GITHUB_ENV"
        - run: echo "$COLOUR ${{ env.COLOUR }}"
    second:
      runs-on: x
      needs: first
      env: {GIVEN: "${{ needs.first.outputs.what }}"}
      steps: [{run: 'echo "$GIVEN"'}]
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert "red red" in job_log(run, "first")
    assert "one\ntwo" in job_log(run, "second")


async def test_needs_conditions_and_a_matrix_are_evaluated(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    build:
      runs-on: x
      strategy: {matrix: {os: [a, b], skip: [false]}}
      steps: [{run: 'test "${{ matrix.os }}" = a'}]
    after: {needs: build, runs-on: x, steps: [{run: echo never}]}
    further: {needs: after, if: always(), runs-on: x, steps: [{run: 'echo "${{ needs.after.result }}"'}]}
    last: {needs: further, runs-on: x, steps: [{run: echo never}]}
    unless: {needs: build, if: "failure() && needs.build.result == 'failure'", runs-on: x, steps: [{run: "true"}]}
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {
        "build (a, false)": "success",
        "build (b, false)": "failure",
        "after": "skipped",
        "further": "success",
        "last": "skipped",
        "unless": "success",
    }
    assert "skipped" in job_log(run, "further")


async def test_checkout_copies_the_folder_and_other_commits(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    build:
      runs-on: x
      steps:
        - uses: actions/checkout@0123456789012345678901234567890123456789
        - uses: actions/checkout@v4
          with: {repository: org/upstream, path: up, ref: "${{ github.event.client_payload.sha }}"}
        - run: ./ci/build
    sparse:
      runs-on: x
      steps:
        - uses: actions/checkout@v4
          with: {sparse-checkout: .crcr}
        - run: ls -A . .crcr
    """
    files = workflow(jobs) | {"ci/build": "#!/bin/bash\ncat up/allow/list.yml\n", ".crcr/report.py": ""}
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran(sha=github.repository("org/upstream").head_sha)
    assert job_conclusions(run) == {"build": "success", "sparse": "success"}
    assert "L1: []" in job_log(run)
    assert "report.py" in job_log(run, "sparse")
    assert "ci" not in job_log(run, "sparse").split()


async def test_artifacts_are_passed_from_job_to_job(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    build:
      runs-on: x
      steps:
        - run: mkdir -p out/deep && echo one > out/deep/a.xml && echo two > out/b.xml && echo no > out/c.txt
        - uses: actions/upload-artifact@v4
          with: {name: junit, path: "out/**/*.xml"}
    read:
      needs: build
      runs-on: x
      steps:
        - uses: actions/download-artifact@v4
          with: {name: junit, path: "${{ runner.temp }}/junit"}
        - run: cd "$RUNNER_TEMP/junit" && find . -type f | sort
        - uses: actions/download-artifact@v4
          continue-on-error: true
          with: {name: absent}
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "success", "read": "success"}
    assert "./b.xml\n./deep/a.xml\n" in job_log(run, "read")
    assert "c.txt" not in job_log(run, "read")


async def test_a_composite_action_receives_its_inputs_and_sets_outputs(
    github: GitHub, tmp_path: Path
) -> None:
    action = """
    name: Greet
    inputs: {who: {default: nobody}, how: {default: hello}}
    outputs: {said: {value: "${{ steps.say.outputs.said }}"}}
    runs:
      using: composite
      steps:
        - id: say
          shell: bash
          env: {WHO: "${{ inputs.who }}"}
          run: |
            cat "$GITHUB_ACTION_PATH/words"
            echo "said=${{ inputs.how }} $WHO" >> "$GITHUB_OUTPUT"
    """
    jobs = """
    build:
      runs-on: x
      steps:
        - uses: actions/checkout@v4
        - {id: greet, uses: ./greet, with: {who: "${{ github.event.client_payload.who }}"}}
        - {env: {SAID: "${{ steps.greet.outputs.said }}"}, run: 'echo "$SAID"'}
    """
    files = workflow(jobs) | {"greet/action.yml": action, "greet/words": "words of the action\n"}
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran(who="${{ github.token }}$(touch /tmp/never)")
    assert "words of the action" in job_log(run)
    assert "hello ${{ github.token }}$(touch /tmp/never)" in job_log(run)


async def test_expressions_in_run_name_and_job_name_are_evaluated(github: GitHub, tmp_path: Path) -> None:
    head = 'run-name: "ci ${{ github.event.client_payload.delivery_id }}"\non: repository_dispatch\n'
    jobs = """
    build:
      name: "build ${{ matrix.os }}"
      strategy: {matrix: {os: [a]}}
      runs-on: x
      steps: [{run: "true"}]
    """
    async with runner_harness(github, tmp_path, workflow(jobs, head=head)) as harness:
        run = await harness.ran(delivery_id="abc")
    assert run.display_title == "ci abc"
    assert job_conclusions(run) == {"build a": "success"}


async def test_a_rerun_of_failed_jobs_keeps_the_others_and_their_outputs(
    github: GitHub, tmp_path: Path
) -> None:
    jobs = """
    first:
      runs-on: x
      outputs: {word: "${{ steps.a.outputs.word }}"}
      steps: [{id: a, run: 'echo word=kept >> "$GITHUB_OUTPUT"'}]
    second:
      needs: first
      runs-on: x
      steps: [{run: 'echo "${{ needs.first.outputs.word }} $GITHUB_RUN_ATTEMPT"; test "$GITHUB_RUN_ATTEMPT" = 2'}]
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
        assert run.conclusion == "failure"
        await github.rerun(run, failed_only=True)
        await harness.runner.settle()
    assert run.conclusion == "success"
    assert "kept 2" in job_log(run, "second")


async def test_githubs_webhooks_agree_with_the_run(
    github: GitHub, tmp_path: Path, token_for: "object"
) -> None:
    repository = "acme/runs"
    async with runner_harness(github, tmp_path, one_job("true", "false")) as harness:
        github.repository(repository).sends_run_webhooks = True
        await harness.ran()
    webhooks = [
        (each.event, each.action) for each in github.deliveries() if each.event.startswith("workflow")
    ]
    assert webhooks == [
        ("workflow_run", "requested"),
        ("workflow_job", "queued"),
        ("workflow_run", "in_progress"),
        ("workflow_job", "in_progress"),
        ("workflow_job", "completed"),
        ("workflow_run", "completed"),
    ]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ("build: {runs-on: x, steps: [{run: a, uses: b}]}", "either `run` or `uses`"),
        ("build: {runs-on: x, container: c, steps: [{run: a}]}", "container"),
        ("build: {runs-on: x, needs: other, steps: [{run: a}]}", "lead nowhere"),
        ("build: {steps: [{run: a}]}", "runs-on"),
        ("build: {runs-on: x, permissions: {id-token: yes}, steps: [{run: a}]}", "id-token: yes"),
    ],
)
async def test_an_invalid_workflow_is_reported_when_it_joins(
    github: GitHub, tmp_path: Path, jobs: str, words: str
) -> None:
    with pytest.raises(WorkflowError, match=words):
        async with runner_harness(github, tmp_path, workflow(jobs)):
            pass


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("run: 'echo ${{ nothing.here }}'", "there is no 'nothing' here"),
        ("run: 'echo ${{ foo(1) }}'", "no function foo"),
        ("uses: actions/setup-java@v4", "has no action actions/setup-java@v4"),
        ("{if: 'env.A == secrets.B', run: echo}", "there is no 'secrets' here"),
        ("{shell: pwsh, run: echo}", "no shell 'pwsh'"),
    ],
)
async def test_a_step_that_cannot_be_run_fails_the_job_with_a_reason(
    github: GitHub, tmp_path: Path, step: str, words: str
) -> None:
    files = workflow(f"build:\n  runs-on: x\n  steps:\n    - {step}")
    async with runner_harness(github, tmp_path, files) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "failure"}
    assert words in job_log(run)
    assert words in harness.runner.problems[0]
