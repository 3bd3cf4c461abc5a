"""REST routes of GitHub Actions: runs, their attempts and jobs, re-run and cancel."""

import operator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from github_sim.bodies.actions import job_json, run_json, workflow_json
from github_sim.rest.exchange import ApiError, ApiRequest, Reply, Route, paginate
from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

MOST_ATTEMPTS = 51
OLDEST = timedelta(days=30)
_COMPARISONS = ((">=", operator.ge), ("<=", operator.le), (">", operator.gt), ("<", operator.lt))


def _run(sim: "Simulation", request: ApiRequest) -> WorkflowRun:
    run = sim.world.runs.get(request.number("run_id"))
    if run is None or run.repository_id != request.repository.id:
        raise ApiError(404, "Not Found")
    return run


def _run_json(sim: "Simulation", request: ApiRequest, run: WorkflowRun) -> Json:
    return run_json(sim.base_url, request.repository, run, sim.world.account(run.actor))


async def list_runs(sim: "Simulation", request: ApiRequest) -> Reply:
    runs = [run for run in sim.world.runs_of(request.repository) if _matches_filters(run, request)]
    runs.reverse()
    page, headers = paginate(sim.base_url, request, runs)
    bodies = [_run_json(sim, request, run) for run in page]
    return Reply(200, {"total_count": len(runs), "workflow_runs": bodies}, headers)


def _matches_filters(run: WorkflowRun, request: ApiRequest) -> bool:
    event, status, created = (request.query.get(name) for name in ("event", "status", "created"))
    return (
        (event is None or run.event == event)
        and (status is None or status in {run.status, run.conclusion})
        and (created is None or _within(run.created_at, created))
    )


def _within(at: datetime, span: str) -> bool:
    """GitHub's search syntax for times: `>=t`, `<=t`, `>t`, `<t`, `a..b`, or a day."""
    if ".." in span:
        low, high = span.split("..")
        return (low == "*" or at >= _parse_time(low)) and (high == "*" or at <= _parse_time(high))
    for sign, holds in _COMPARISONS:
        if span.startswith(sign):
            return bool(holds(at, _parse_time(span.removeprefix(sign))))
    return at.strftime("%Y-%m-%d") == span[:10]


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ApiError(422, f"Invalid time in created: {text}", errors=[]) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def get_run(sim: "Simulation", request: ApiRequest) -> Reply:
    return Reply(200, _run_json(sim, request, _run(sim, request)))


async def list_jobs(sim: "Simulation", request: ApiRequest) -> Reply:
    run = _run(sim, request)
    every = request.query.get("filter") == "all"
    jobs = [job for jobs in run.attempts.values() for job in jobs] if every else run.jobs
    return _jobs(sim, request, run, jobs)


async def list_attempt_jobs(sim: "Simulation", request: ApiRequest) -> Reply:
    run = _run(sim, request)
    jobs = run.attempts.get(request.number("attempt_number"))
    if jobs is None:
        raise ApiError(404, "Not Found")
    return _jobs(sim, request, run, jobs)


def _jobs(sim: "Simulation", request: ApiRequest, run: WorkflowRun, jobs: list[WorkflowJob]) -> Reply:
    page, headers = paginate(sim.base_url, request, jobs)
    bodies = [job_json(sim.base_url, request.repository, run, job) for job in page]
    return Reply(200, {"total_count": len(jobs), "jobs": bodies}, headers)


async def list_workflows(sim: "Simulation", request: ApiRequest) -> Reply:
    """Those whose file is on the default branch, and those that a test declared without one."""
    repository = request.repository
    files = [
        path
        for path in repository.commits[repository.head_sha].tree
        if path.startswith(".github/workflows/") and path.endswith((".yml", ".yaml"))
    ]
    paths = sorted({*files, *(workflow.path for workflow in repository.workflows)})
    page, headers = paginate(sim.base_url, request, paths)
    number = sim.world.workflow_id
    bodies = [workflow_json(sim.base_url, repository, number(repository.id, path), path) for path in page]
    return Reply(200, {"total_count": len(paths), "workflows": bodies}, headers)


async def get_job(sim: "Simulation", request: ApiRequest) -> Reply:
    job_id = request.number("job_id")
    for run in sim.world.runs_of(request.repository):
        for job in (job for jobs in run.attempts.values() for job in jobs if job.id == job_id):
            return Reply(200, job_json(sim.base_url, request.repository, run, job))
    raise ApiError(404, "Not Found")


async def rerun(sim: "Simulation", request: ApiRequest) -> Reply:
    sim.ci.rerun(_finished_run(sim, request))
    await sim.send_queued_webhooks()
    return Reply(201, {})


async def rerun_failed(sim: "Simulation", request: ApiRequest) -> Reply:
    run = _finished_run(sim, request)
    if run.conclusion == "success":
        raise ApiError(403, "This workflow run has no failed jobs")
    sim.ci.rerun(run, failed_only=True)
    await sim.send_queued_webhooks()
    return Reply(201, {})


def _finished_run(sim: "Simulation", request: ApiRequest) -> WorkflowRun:
    run = _run(sim, request)
    if run.status != "completed":
        raise ApiError(403, "This workflow is already running")
    if sim.clock.now() - run.created_at > OLDEST:
        raise ApiError(403, "Unable to retry this workflow run because it was created over a month ago")
    if run.attempt >= MOST_ATTEMPTS:
        raise ApiError(403, "This workflow run has been re-run too many times")
    return run


async def cancel(sim: "Simulation", request: ApiRequest) -> Reply:
    run = _run(sim, request)
    if run.status == "completed":
        raise ApiError(409, "Cannot cancel a workflow run that is completed.")
    sim.ci.cancel(run)
    await sim.send_queued_webhooks()
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
