"""Workflow runs of a downstream and their jobs, and requests for another attempt.

https://docs.github.com/en/rest/actions/workflow-runs, https://docs.github.com/en/rest/actions/workflow-jobs
"""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun, Urgency
from crcr.decide.github.workflow_runs import parse_check_run_id, parse_conclusion, path_without_ref
from crcr.decide.model import RepoName
from crcr.github.api.request_response import Id, Request, Response, Time, decode, format_time, list_first_page

RUNS_A_PAGE = 50

# Requests


def rerun(repo: RepoName, run_id: int, *, failed_only: bool) -> Request:
    action = "rerun-failed-jobs" if failed_only else "rerun"
    return Request("POST", f"/repos/{repo}/actions/runs/{run_id:d}/{action}", writes=True)


def read_run(repo: RepoName, run_id: int, *, urgency: Urgency = Urgency.FIRST) -> Request:
    return Request("GET", f"/repos/{repo}/actions/runs/{run_id:d}", urgency=urgency)


def list_runs(
    repo: RepoName, *, event: str, since: datetime, until: datetime, urgency: Urgency = Urgency.FIRST
) -> Request:
    """Request the runs between two times, both included."""
    created = f"{format_time(since)}..{format_time(until)}"
    request = list_first_page(f"/repos/{repo}/actions/runs", size=RUNS_A_PAGE, event=event, created=created)
    return replace(request, urgency=urgency)


def list_jobs(repo: RepoName, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST) -> Request:
    path = f"/repos/{repo}/actions/runs/{run_id:d}/attempts/{attempt:d}/jobs"
    return replace(list_first_page(path), urgency=urgency)


# Responses


class _Run(msgspec.Struct):
    id: Id
    event: str
    created_at: Time
    run_attempt: Id = 1
    status: str | None = None
    conclusion: str | None = None
    display_title: str | None = None
    name: str | None = None
    path: str | None = None


class _Runs(msgspec.Struct):
    workflow_runs: list[_Run]


class _Job(msgspec.Struct):
    id: Id
    name: str
    status: str
    run_attempt: Id | None = None
    conclusion: str | None = None
    check_run_url: str | None = None
    started_at: Time | None = None
    completed_at: Time | None = None


class _Jobs(msgspec.Struct):
    jobs: list[_Job]


def parse_run(response: Response) -> ActionsRun:
    return _run(decode(response, _Run))


def parse_runs(response: Response) -> tuple[ActionsRun, ...]:
    return tuple(_run(run) for run in decode(response, _Runs).workflow_runs)


def parse_jobs(response: Response, attempt: int) -> tuple[ActionsJob, ...]:
    return tuple(_job(job, attempt) for job in decode(response, _Jobs).jobs)


def _run(run: _Run) -> ActionsRun:
    return ActionsRun(
        run_id=run.id,
        attempt=run.run_attempt,
        status=run.status or "",
        conclusion=parse_conclusion(run.conclusion),
        display_title=run.display_title or "",
        workflow_name=run.name or "",
        workflow_path=path_without_ref(run.path or ""),
        event=run.event,
        created_at=run.created_at.astimezone(UTC),
    )


def _job(job: _Job, attempt: int) -> ActionsJob:
    return ActionsJob(
        job_id=job.id,
        check_run_id=parse_check_run_id(job.check_run_url),
        name=job.name,
        attempt=job.run_attempt or attempt,
        status=job.status,
        conclusion=parse_conclusion(job.conclusion),
        started_at=_utc(job.started_at),
        completed_at=_utc(job.completed_at),
    )


def _utc(at: datetime | None) -> datetime | None:
    return at.astimezone(UTC) if at is not None else None
