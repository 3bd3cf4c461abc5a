"""A downstream's Actions: its workflow runs and their jobs, and asking for another attempt.

https://docs.github.com/en/rest/actions/workflow-runs, https://docs.github.com/en/rest/actions/workflow-jobs
"""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from crcr.decide.github.values import ActionsJob, ActionsRun, Urgency
from crcr.decide.github.workflow_runs import parse_check_run_id, parse_conclusion, path_without_ref
from crcr.decide.model import RepoName
from crcr.github.api.core import Id, Request, Response, Time, decode, listing, moment

RUNS_A_PAGE = 50

# Requests


def rerun(repo: RepoName, run_id: int, *, failed_only: bool) -> Request:
    what = "rerun-failed-jobs" if failed_only else "rerun"
    return Request("POST", f"/repos/{repo}/actions/runs/{run_id:d}/{what}", writes=True)


def read_run(repo: RepoName, run_id: int, *, urgency: Urgency = Urgency.FIRST) -> Request:
    return Request("GET", f"/repos/{repo}/actions/runs/{run_id:d}", urgency=urgency)


def list_runs(
    repo: RepoName, *, event: str, since: datetime, until: datetime, urgency: Urgency = Urgency.FIRST
) -> Request:
    """Ask for the runs of a span of time; both ends are part of it."""
    created = f"{moment(since)}..{moment(until)}"
    asked = listing(f"/repos/{repo}/actions/runs", size=RUNS_A_PAGE, event=event, created=created)
    return replace(asked, urgency=urgency)


def run_jobs(repo: RepoName, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST) -> Request:
    path = f"/repos/{repo}/actions/runs/{run_id:d}/attempts/{attempt:d}/jobs"
    return replace(listing(path), urgency=urgency)


# Answers


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


def run(response: Response) -> ActionsRun:
    return _run(decode(response, _Run))


def runs(response: Response) -> tuple[ActionsRun, ...]:
    return tuple(_run(each) for each in decode(response, _Runs).workflow_runs)


def jobs(response: Response, attempt: int) -> tuple[ActionsJob, ...]:
    return tuple(_job(each, attempt) for each in decode(response, _Jobs).jobs)


def _run(found: _Run) -> ActionsRun:
    return ActionsRun(
        run_id=found.id,
        attempt=found.run_attempt,
        status=found.status or "",
        conclusion=parse_conclusion(found.conclusion),
        display_title=found.display_title or "",
        workflow_name=found.name or "",
        workflow_path=path_without_ref(found.path or ""),
        event=found.event,
        created_at=found.created_at.astimezone(UTC),
    )


def _job(found: _Job, attempt: int) -> ActionsJob:
    return ActionsJob(
        job_id=found.id,
        check_run_id=parse_check_run_id(found.check_run_url),
        name=found.name,
        attempt=found.run_attempt or attempt,
        status=found.status,
        conclusion=parse_conclusion(found.conclusion),
        started_at=_utc(found.started_at),
        completed_at=_utc(found.completed_at),
    )


def _utc(at: datetime | None) -> datetime | None:
    return at.astimezone(UTC) if at is not None else None
