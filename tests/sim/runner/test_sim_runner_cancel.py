"""Cancelling simulated runs: children are killed with all their processes, and steps with `always()` still run."""

import asyncio
from pathlib import Path

import pytest

from github_sim.github import GitHub
from support.downstream.workflow_runs import (
    RunnerHarness,
    job_conclusions,
    job_log,
    job_steps,
    one_job,
    runner_harness,
    workflow,
)

pytestmark = pytest.mark.slow

GROUP = """
on: repository_dispatch
concurrency:
  group: "pr-${{ github.event.client_payload.number }}"
  cancel-in-progress: %s
"""
WAITS = """
build:
  runs-on: x
  steps:
    - run: |
        sleep 300 & echo $! > {place}/child
        echo $$ > {place}/shell
        wait
    - {{if: always(), run: echo cleaned}}
report: {{needs: build, if: always(), runs-on: x, steps: [{{run: 'echo "${{{{ needs.build.result }}}}"'}}]}}
unless: {{needs: build, runs-on: x, steps: [{{run: "true"}}]}}
"""


async def wait_until_started(marker_folder: Path) -> None:
    while not (marker_folder / "shell").exists() or not (marker_folder / "shell").read_text().strip():
        await asyncio.sleep(0.01)


def is_alive(marker_folder: Path, name: str) -> bool:
    """Whether a process still runs; one that is dead but not yet reaped does not count."""
    try:
        stat = Path(f"/proc/{int((marker_folder / name).read_text())}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def is_removed(folder: Path) -> bool:
    return not folder.exists()


async def test_cancel_kills_the_step_and_its_children_and_runs_the_clean_up(
    github: GitHub, tmp_path: Path
) -> None:
    marker_folder = tmp_path / "seen"
    marker_folder.mkdir()
    async with runner_harness(
        github, tmp_path / "files", workflow(WAITS.format(place=marker_folder))
    ) as harness:
        (run,) = harness.dispatch()
        await wait_until_started(marker_folder)
        await github.cancel(run, report=False)
        await harness.runner.settle()
    assert job_conclusions(run) == {"build": "cancelled", "report": "success", "unless": "cancelled"}
    assert [step.conclusion for step in job_steps(run)] == ["cancelled", "success"]
    assert "cleaned" in job_log(run)
    assert "cancelled" in job_log(run, "report")
    assert (is_alive(marker_folder, "shell"), is_alive(marker_folder, "child")) == (False, False)


async def test_a_step_with_always_is_not_killed(github: GitHub, tmp_path: Path) -> None:
    marker_folder = tmp_path / "seen"
    marker_folder.mkdir()
    jobs = f"""
    build:
      runs-on: x
      steps:
        - if: always()
          run: |
            echo $$ > {marker_folder}/shell
            while [ ! -e {marker_folder}/go ]; do sleep 0.05; done
            echo finished
        - run: echo never
    """
    async with runner_harness(github, tmp_path / "files", workflow(jobs)) as harness:
        (run,) = harness.dispatch()
        await wait_until_started(marker_folder)
        await github.cancel(run, report=False)
        (marker_folder / "go").touch()
        await harness.runner.settle()
    assert job_conclusions(run) == {"build": "cancelled"}
    assert [step.conclusion for step in job_steps(run)] == ["success", "skipped"]


async def dispatch_several(
    harness: RunnerHarness, marker_folder: Path, *, ends_first: bool
) -> list[dict[str, str | None]]:
    (first,) = harness.dispatch(number=7)
    await wait_until_started(marker_folder)
    (second,) = harness.dispatch(number=7)
    (third,) = harness.dispatch(number=7)
    (other,) = harness.dispatch(number=8)
    while ends_first and first.status != "completed":
        await asyncio.sleep(0.01)
    (marker_folder / "go").touch()
    await harness.runner.settle()
    return [job_conclusions(run) for run in (first, second, third, other)]


def waiting_job(marker_folder: Path) -> str:
    return f"""
    build:
      runs-on: x
      steps:
        - run: |
            echo $$ > {marker_folder}/shell
            while [ ! -e {marker_folder}/go ]; do sleep 0.05; done
    """


async def test_a_newer_run_of_the_group_cancels_the_older(github: GitHub, tmp_path: Path) -> None:
    marker_folder = tmp_path / "seen"
    marker_folder.mkdir()
    files = workflow(waiting_job(marker_folder), head=GROUP % "true")
    async with runner_harness(github, tmp_path / "files", files) as harness:
        results = await dispatch_several(harness, marker_folder, ends_first=True)
    conclusions = [each["build"] for each in results]
    assert conclusions[:2] == ["cancelled", "cancelled"]
    assert conclusions[2:] == ["success", "success"]


async def test_without_cancel_in_progress_the_running_one_ends_and_only_the_newest_waits(
    github: GitHub, tmp_path: Path
) -> None:
    marker_folder = tmp_path / "seen"
    marker_folder.mkdir()
    files = workflow(
        waiting_job(marker_folder), head=GROUP % "${{ github.event.client_payload.number == 9 }}"
    )
    async with runner_harness(github, tmp_path / "files", files) as harness:
        results = await dispatch_several(harness, marker_folder, ends_first=False)
    assert [each["build"] for each in results] == ["success", "cancelled", "success", "success"]


async def test_a_step_that_exceeds_its_timeout_fails(github: GitHub, tmp_path: Path) -> None:
    jobs = """
    build:
      runs-on: x
      steps:
        - {timeout-minutes: 0.005, run: sleep 60}
        - {if: failure(), run: echo noticed}
    """
    async with runner_harness(github, tmp_path, workflow(jobs)) as harness:
        run = await harness.ran()
    assert job_conclusions(run) == {"build": "failure"}
    assert "noticed" in job_log(run)


async def test_the_end_of_the_simulation_leaves_no_process_and_no_folder(
    github: GitHub, tmp_path: Path
) -> None:
    marker_folder = tmp_path / "seen"
    marker_folder.mkdir()
    async with runner_harness(
        github, tmp_path / "files", one_job(f"echo $$ > {marker_folder}/shell; sleep 300")
    ) as harness:
        harness.dispatch()
        await wait_until_started(marker_folder)
        root = harness.runner.folders.root
        await github.aclose()
    assert not is_alive(marker_folder, "shell")
    assert is_removed(root)
