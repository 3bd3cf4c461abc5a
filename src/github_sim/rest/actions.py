"""REST routes of GitHub Actions: runs, their attempts and jobs, re-run and cancel."""

import operator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from github_sim.bodies.actions import job_json, run_json, workflow_json
from github_sim.rest.exchange import ApiError, Ask, Reply, Route, page_of
from github_sim.world.actions import Job, WorkflowRun
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_ATTEMPTS = 51
OLDEST = timedelta(days=30)
_COMPARISONS = ((">=", operator.ge), ("<=", operator.le), (">", operator.gt), ("<", operator.lt))


def _run(sim: "Simulation", ask: Ask) -> WorkflowRun:
    found = sim.world.runs.get(ask.number("run_id"))
    if found is None or found.repository_id != ask.repository.id:
        raise ApiError(404, "Not Found")
    return found


def _run_json(sim: "Simulation", ask: Ask, run: WorkflowRun) -> Json:
    return run_json(sim.base_url, ask.repository, run, sim.world.account(run.actor))


async def list_runs(sim: "Simulation", ask: Ask) -> Reply:
    found = [run for run in sim.world.runs_of(ask.repository) if _selected(run, ask)]
    found.reverse()
    shown, headers = page_of(sim.base_url, ask, found)
    listed = [_run_json(sim, ask, run) for run in shown]
    return Reply(200, {"total_count": len(found), "workflow_runs": listed}, headers)


def _selected(run: WorkflowRun, ask: Ask) -> bool:
    event, status, created = (ask.query.get(name) for name in ("event", "status", "created"))
    return (
        (event is None or run.event == event)
        and (status is None or status in {run.status, run.conclusion})
        and (created is None or _within(run.created_at, created))
    )


def _within(at: datetime, span: str) -> bool:
    """GitHub's search syntax for times: `>=t`, `<=t`, `>t`, `<t`, `a..b`, or a day."""
    if ".." in span:
        low, high = span.split("..")
        return (low == "*" or at >= _moment(low)) and (high == "*" or at <= _moment(high))
    for sign, holds in _COMPARISONS:
        if span.startswith(sign):
            return bool(holds(at, _moment(span.removeprefix(sign))))
    return at.strftime("%Y-%m-%d") == span[:10]


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ApiError(422, f"Invalid time in created: {text}", errors=[]) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def get_run(sim: "Simulation", ask: Ask) -> Reply:
    return Reply(200, _run_json(sim, ask, _run(sim, ask)))


async def list_jobs(sim: "Simulation", ask: Ask) -> Reply:
    run = _run(sim, ask)
    every = ask.query.get("filter") == "all"
    jobs = [job for jobs in run.attempts.values() for job in jobs] if every else run.jobs
    return _jobs(sim, ask, run, jobs)


async def list_attempt_jobs(sim: "Simulation", ask: Ask) -> Reply:
    run = _run(sim, ask)
    jobs = run.attempts.get(ask.number("attempt_number"))
    if jobs is None:
        raise ApiError(404, "Not Found")
    return _jobs(sim, ask, run, jobs)


def _jobs(sim: "Simulation", ask: Ask, run: WorkflowRun, jobs: list[Job]) -> Reply:
    shown, headers = page_of(sim.base_url, ask, jobs)
    listed = [job_json(sim.base_url, ask.repository, run, job) for job in shown]
    return Reply(200, {"total_count": len(jobs), "jobs": listed}, headers)


async def list_workflows(sim: "Simulation", ask: Ask) -> Reply:
    """Those whose file is on the default branch, and those that a test declared without one."""
    repository = ask.repository
    files = [
        path
        for path in repository.commits[repository.head_sha].tree
        if path.startswith(".github/workflows/") and path.endswith((".yml", ".yaml"))
    ]
    paths = sorted({*files, *(each.path for each in repository.workflows)})
    shown, headers = page_of(sim.base_url, ask, paths)
    number = sim.world.workflow_id
    listed = [workflow_json(sim.base_url, repository, number(repository.id, each), each) for each in shown]
    return Reply(200, {"total_count": len(paths), "workflows": listed}, headers)


async def get_job(sim: "Simulation", ask: Ask) -> Reply:
    wanted = ask.number("job_id")
    for run in sim.world.runs_of(ask.repository):
        for job in (job for jobs in run.attempts.values() for job in jobs if job.id == wanted):
            return Reply(200, job_json(sim.base_url, ask.repository, run, job))
    raise ApiError(404, "Not Found")


async def rerun(sim: "Simulation", ask: Ask) -> Reply:
    sim.ci.rerun(_finished_run(sim, ask))
    await sim.tell_news()
    return Reply(201, {})


async def rerun_failed(sim: "Simulation", ask: Ask) -> Reply:
    run = _finished_run(sim, ask)
    if run.conclusion == "success":
        raise ApiError(403, "This workflow run has no failed jobs")
    sim.ci.rerun(run, failed_only=True)
    await sim.tell_news()
    return Reply(201, {})


def _finished_run(sim: "Simulation", ask: Ask) -> WorkflowRun:
    run = _run(sim, ask)
    if run.status != "completed":
        raise ApiError(403, "This workflow is already running")
    if sim.clock.now() - run.created_at > OLDEST:
        raise ApiError(403, "Unable to retry this workflow run because it was created over a month ago")
    if run.attempt >= MOST_ATTEMPTS:
        raise ApiError(403, "This workflow run has been re-run too many times")
    return run


async def cancel(sim: "Simulation", ask: Ask) -> Reply:
    run = _run(sim, ask)
    if run.status == "completed":
        raise ApiError(409, "Cannot cancel a workflow run that is completed.")
    sim.ci.cancel(run)
    await sim.tell_news()
    return Reply(202, {})


_ACTIONS = "/repos/{owner}/{repo}/actions"
_READ, _WRITE = ("actions", "read"), ("actions", "write")
_RUN = f"{_ACTIONS}/runs/{{run_id}}"
ROUTES = (
    Route("GET", f"{_ACTIONS}/workflows", list_workflows, permission=_READ),
    Route("GET", f"{_ACTIONS}/runs", list_runs, permission=_READ),
    Route("GET", _RUN, get_run, permission=_READ),
    Route("GET", f"{_RUN}/jobs", list_jobs, permission=_READ),
    Route("GET", f"{_RUN}/attempts/{{attempt_number}}/jobs", list_attempt_jobs, permission=_READ),
    Route("GET", f"{_ACTIONS}/jobs/{{job_id}}", get_job, permission=_READ),
    Route("POST", f"{_RUN}/rerun", rerun, permission=_WRITE),
    Route("POST", f"{_RUN}/rerun-failed-jobs", rerun_failed, permission=_WRITE),
    Route("POST", f"{_RUN}/cancel", cancel, permission=_WRITE),
)
