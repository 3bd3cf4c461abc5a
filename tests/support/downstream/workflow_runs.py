"""`runner_harness`: a downstream whose workflow files the simulated runner executes, and its jobs' logs and conclusions."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from github_sim.github import GitHub
from github_sim.rest.server import serve
from github_sim.runner.runner import Runner
from github_sim.world.actions import StepRun, WorkflowRun

DOWNSTREAM = "acme/runs"
LISTENS = "on: {repository_dispatch: {types: [pull_request]}}\n"
LIMIT_S = 30.0


class RunnerHarness:
    def __init__(self, github: GitHub, runner: Runner, folder: Path) -> None:
        self.github = github
        self.runner = runner
        self.folder = folder

    def dispatch(self, event_type: str = "pull_request", **payload: Any) -> list[WorkflowRun]:
        repository = self.github.repository(DOWNSTREAM)
        return self.github.ci.start_runs(repository, "repository_dispatch", event_type, payload)

    async def ran(self, event_type: str = "pull_request", **payload: Any) -> WorkflowRun:
        """Dispatch, and return the only run after it has ended."""
        (run,) = self.dispatch(event_type, **payload)
        await self.runner.settle()
        return run

    def rejoin(self, files: Mapping[str, str], **more: Any) -> None:
        write_files(self.folder, files)
        self.runner.join(self.github.repository(DOWNSTREAM), self.folder, **more)


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files of a downstream. A bare name is a workflow; a text that begins with #! becomes executable."""
    for name, text in files.items():
        path = folder / (name if "/" in name or name.startswith(".") else f".github/workflows/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    return folder


@asynccontextmanager
async def runner_harness(
    github: GitHub, folder: Path, files: Mapping[str, str], **more: Any
) -> AsyncIterator[RunnerHarness]:
    async with serve(github):
        runner = Runner(github, limit_s=LIMIT_S)
        repository = github.create_repository(DOWNSTREAM)
        made = RunnerHarness(github, runner, write_files(folder, files))
        runner.join(repository, folder, **more)
        yield made
        await runner.settle()


def workflow(jobs: str, *, head: str = LISTENS + "permissions: {}\n") -> dict[str, str]:
    return {"ci.yml": head + "jobs:\n" + _indented(dedent(jobs).strip("\n"))}


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def one_job(*steps: str, more: str = "") -> dict[str, str]:
    """A workflow of one job `build` with these scripts as its steps."""
    listed = "".join("- run: |\n" + _indented(_indented(dedent(step))) for step in steps)
    return workflow(
        f"build:\n  runs-on: x\n{_indented(dedent(more))}  steps:\n{_indented(_indented(listed))}"
    )


def job_conclusions(run: WorkflowRun) -> dict[str, str | None]:
    return {job.name: job.conclusion for job in run.jobs}


def job_log(run: WorkflowRun, job: str = "build") -> str:
    return "".join(step.log for step in job_steps(run, job))


def job_steps(run: WorkflowRun, job: str = "build") -> list[StepRun]:
    return run.job(job).steps
