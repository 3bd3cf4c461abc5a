"""Cancelling simulated runs: children die with all they started, and what wants to run always still runs."""

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


async def begun(place: Path) -> None:
    while not (place / "shell").exists() or not (place / "shell").read_text().strip():
        await asyncio.sleep(0.01)


def alive(place: Path, name: str) -> bool:
    """Whether a process still runs; one that is dead but not yet reaped does not count."""
    try:
        stat = Path(f"/proc/{int((place / name).read_text())}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def is_removed(folder: Path) -> bool:
    return not folder.exists()


async def test_cancel_kills_the_step_and_its_children_and_then_cleans_up(
    github: GitHub, tmp_path: Path
) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    async with runner_harness(github, tmp_path / "files", workflow(WAITS.format(place=place))) as harness:
        (run,) = harness.dispatch()
        await begun(place)
        await github.cancel(run, report=False)
        await harness.runner.settle()
    assert job_conclusions(run) == {"build": "cancelled", "report": "success", "unless": "cancelled"}
    assert [step.conclusion for step in job_steps(run)] == ["cancelled", "success"]
    assert "cleaned" in job_log(run)
    assert "cancelled" in job_log(run, "report")
    assert (alive(place, "shell"), alive(place, "child")) == (False, False)


async def test_a_step_that_wants_to_run_always_is_not_killed(github: GitHub, tmp_path: Path) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    jobs = f"""
    build:
      runs-on: x
      steps:
        - if: always()
          run: |
            echo $$ > {place}/shell
            while [ ! -e {place}/go ]; do sleep 0.05; done
            echo finished
        - run: echo never
    """
    async with runner_harness(github, tmp_path / "files", workflow(jobs)) as harness:
        (run,) = harness.dispatch()
        await begun(place)
        await github.cancel(run, report=False)
        (place / "go").touch()
        await harness.runner.settle()
    assert job_conclusions(run) == {"build": "cancelled"}
    assert [step.conclusion for step in job_steps(run)] == ["success", "skipped"]


async def two_dispatches(
    harness: RunnerHarness, place: Path, *, ends_first: bool
) -> list[dict[str, str | None]]:
    (first,) = harness.dispatch(number=7)
    await begun(place)
    (second,) = harness.dispatch(number=7)
    (third,) = harness.dispatch(number=7)
    (other,) = harness.dispatch(number=8)
    while ends_first and first.status != "completed":
        await asyncio.sleep(0.01)
    (place / "go").touch()
    await harness.runner.settle()
    return [job_conclusions(run) for run in (first, second, third, other)]


def waiting_job(place: Path) -> str:
    return f"""
    build:
      runs-on: x
      steps:
        - run: |
            echo $$ > {place}/shell
            while [ ! -e {place}/go ]; do sleep 0.05; done
    """


async def test_a_newer_run_of_the_group_cancels_the_older(github: GitHub, tmp_path: Path) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    files = workflow(waiting_job(place), head=GROUP % "true")
    async with runner_harness(github, tmp_path / "files", files) as harness:
        found = await two_dispatches(harness, place, ends_first=True)
    words = [each["build"] for each in found]
    assert words[:2] == ["cancelled", "cancelled"]
    assert words[2:] == ["success", "success"]


async def test_without_that_the_running_one_ends_and_only_the_newest_waits(
    github: GitHub, tmp_path: Path
) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    files = workflow(waiting_job(place), head=GROUP % "${{ github.event.client_payload.number == 9 }}")
    async with runner_harness(github, tmp_path / "files", files) as harness:
        found = await two_dispatches(harness, place, ends_first=False)
    assert [each["build"] for each in found] == ["success", "cancelled", "success", "success"]


async def test_a_step_over_its_time_fails(github: GitHub, tmp_path: Path) -> None:
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


async def test_the_end_of_the_simulation_leaves_no_child_and_no_folder(
    github: GitHub, tmp_path: Path
) -> None:
    place = tmp_path / "seen"
    place.mkdir()
    async with runner_harness(
        github, tmp_path / "files", one_job(f"echo $$ > {place}/shell; sleep 300")
    ) as harness:
        harness.dispatch()
        await begun(place)
        root = harness.runner.folders.root
        await github.aclose()
    assert not alive(place, "shell")
    assert is_removed(root)
