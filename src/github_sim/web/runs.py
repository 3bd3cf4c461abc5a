"""The simulator's pages of workflow runs: a repository's newest, and one with its jobs and what their steps wrote."""

from typing import TYPE_CHECKING

from github_sim.web.html import Html, joined, link, mark, tag
from github_sim.world.actions import Job, StepRun, WorkflowRun
from github_sim.world.records import Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_RUNS = 20
MOST_CHARACTERS = 4_000


def runs_list(sim: "Simulation", repository: Repository) -> Html:
    newest = list(sim.world.runs_of(repository))[: -MOST_RUNS - 1 : -1]
    rows = (tag("li", *_run_row(repository, run)) for run in newest)
    return joined(tag("h2", "Workflow runs"), tag("ul", *rows, class_="plain")) if newest else joined()


def _run_row(repository: Repository, run: WorkflowRun) -> tuple[Html, str, Html]:
    address = f"/{repository.full_name}/actions/runs/{run.id}"
    words = f"{run.workflow.name} #{run.run_number} · {run.display_title}"
    return mark(run.conclusion or run.status), " ", link(address, words)


def run_page(sim: "Simulation", repository: Repository, number: int) -> Html | None:
    run = sim.world.runs.get(number)
    if run is None or run.repository_id != repository.id:
        return None
    home = link(f"/{repository.full_name}", repository.full_name)
    return joined(
        tag("h1", run.display_title),
        tag("p", f"{run.workflow.name} run {run.run_number}, attempt {run.attempt}"),
        tag("p", home, f" · {run.event} · {run.conclusion or run.status}"),
        tag("ul", *(_job(job) for job in run.jobs), class_="plain"),
    )


def _job(job: Job) -> Html:
    state = job.conclusion or job.status
    steps = tag("ul", *(_step(step) for step in job.steps), class_="plain") if job.steps else ""
    return tag("li", mark(state), f" {job.name}: {state}", steps)


def _step(step: StepRun) -> Html:
    state = step.conclusion or step.status
    log = step.log[-MOST_CHARACTERS:].strip()
    return tag("li", mark(state), f" {step.name}: {state}", tag("pre", log) if log else "")
