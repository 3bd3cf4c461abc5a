"""Which job a report belongs to, when the name alone is ambiguous.

A job is opened by the check run id that its token signs. A second start of the same name from another signed
id is another leg of a matrix; a finish goes to the row its id opened, or, from a separate reporting job that
opened none, to the only open row of that name.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Conclusion, JobState
from crcr.decide.row_dataclass import row_dataclass

_OPEN = frozenset({JobState.IN_PROGRESS, JobState.TIMED_OUT})


@row_dataclass(frozen=True, slots=True)
class JobFacts:
    job_name: str
    reported_name: str
    state: JobState
    first_conclusion: Conclusion | None
    """The conclusion that was reported first: the same one again is a repeat, even after a dispute."""
    conclusion: Conclusion | None
    """The conclusion that counts."""
    opened_by: str | None
    in_progress_at: datetime
    late_start: bool
    queue_s: float | None = None
    closed_by: str | None = None
    expected: Conclusion | None = None
    """The conclusion that was expected when it began; a newer allowlist does not change what it counts as."""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class MatrixLeg:
    """A new row beside others of the same reported name."""

    job_name: str
    warning: str


@dataclass(frozen=True, slots=True)
class MatchRefusal:
    code: str
    detail: str
    hint: str


def find_job(
    report: Report, signed_id: str | None, jobs: tuple[JobFacts, ...], *, opened_others: bool
) -> JobFacts | MatrixLeg | MatchRefusal | None:
    """Return the job's row, a new matrix leg, or a refusal; None for the first job of its name.

    `jobs` are the run's rows of this name and its legs; `opened_others` says whether the id opened rows of
    other names in this run.
    """
    named = _jobs_of_name(report, jobs)
    own = _job_opened_by(signed_id, named)
    if own is not None:
        return own
    if report.status is ReportStatus.IN_PROGRESS:
        return _find_for_start(report.job_name, signed_id, named, jobs)
    return _find_for_finish(report, signed_id, named, opened_others=opened_others)


def find_self_reported_job(
    report: Report, signed_id: str | None, jobs: tuple[JobFacts, ...]
) -> JobFacts | MatrixLeg | None:
    """Find the job of a self-report, which is sent once, at its end: a signed id has one row of each name."""
    named = _jobs_of_name(report, jobs)
    return _job_opened_by(signed_id, named) or _find_for_start(report.job_name, signed_id, named, jobs)


def _jobs_of_name(report: Report, jobs: tuple[JobFacts, ...]) -> tuple[JobFacts, ...]:
    return tuple(job for job in jobs if job.reported_name == report.job_name)


def _job_opened_by(signed_id: str | None, named: tuple[JobFacts, ...]) -> JobFacts | None:
    return next((job for job in named if signed_id is not None and job.opened_by == signed_id), None)


def _find_for_start(
    name: str, signed_id: str | None, named: tuple[JobFacts, ...], jobs: tuple[JobFacts, ...]
) -> JobFacts | MatrixLeg | None:
    if not named:
        used_names = {job.job_name for job in jobs}
        return _new_leg(name, used_names) if name in used_names else None
    if signed_id is None or named[0].opened_by is None:
        return named[0]  # no signed id tells legs apart: the same name is the same job
    return _new_leg(name, {job.job_name for job in jobs})


def _find_for_finish(
    report: Report, signed_id: str | None, named: tuple[JobFacts, ...], *, opened_others: bool
) -> JobFacts | MatchRefusal | None:
    name = report.job_name
    if not named:
        return None
    if opened_others:
        return MatchRefusal(
            "claim_mismatch",
            f"job {name!r} was opened by another job of this run, and this job opened rows of its own",
            "let each job report under its own name, or all results come from one separate reporting job",
        )
    for job in named:
        if signed_id is not None and job.closed_by == signed_id and job.first_conclusion is report.conclusion:
            return job  # repeated by the reporting job that closed it, even if other rows were opened since
    open_rows = tuple(job for job in named if job.state in _OPEN)
    if len(open_rows) == 1:
        return open_rows[0]
    if not open_rows and len({*(job.first_conclusion for job in named), report.conclusion}) == 1:
        return named[0]  # all of them have this conclusion, so it does not matter which one is meant
    if len(named) == 1:
        return named[0]
    return MatchRefusal(
        "ambiguous_job",
        f"{len(open_rows) or len(named):,} jobs are called {name!r} in this run and the token does not show which one is meant",
        'give matrix legs names of their own, for example "build (cuda, 3.12)"',
    )


def _new_leg(name: str, used_names: set[str]) -> MatrixLeg:
    number = 2
    while f"{name} ({number})" in used_names:
        number += 1
    return MatrixLeg(
        f"{name} ({number})",
        f"another job of this run already reports as {name!r}: recorded as '{name} ({number})'; "
        "put the matrix values into job_name to name the legs yourself",
    )
