"""GitHub's own view of a job against what was reported: which of its jobs is meant, and what counts then.

The worse of the two counts. Only an ended job of GitHub's says anything: a report is sent from inside a job that
is still running.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from crcr.decide.commit import Verification
from crcr.decide.lifecycle import worse
from crcr.decide.model import Conclusion, JobState
from crcr.decide.outside import ActionsJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    job_name: str
    reported_name: str
    state: JobState
    conclusion: Conclusion | None
    opened_by: str | None
    closed_by: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What GitHub's view makes of a reported job."""

    verification: Verification
    conclusion: Conclusion | None
    """What counts now; None leaves it as it is."""
    github: Conclusion | None


def match(job: ReportedJob, seen: Iterable[ActionsJob], *, whole: bool = True) -> ActionsJob | None:
    """The job of GitHub's that a row is about.

    The signed check run id tells, but only where it both opened and closed the row: a separate reporting job
    opens rows that are not its own. Else the name tells, if it is one job's only, which takes the `whole` list.
    """
    seen = tuple(seen)
    if job.opened_by is not None and job.closed_by in (None, job.opened_by):
        own = [each for each in seen if each.check_run_id == job.opened_by]
        if own:
            return own[0]
    if not whole:
        return None
    named = [each for each in seen if each.name in {job.job_name, job.reported_name}]
    return named[0] if len(named) == 1 else None


def examine(job: ReportedJob, seen: ActionsJob | None) -> Finding | None:
    """What to write about a completed job; None while GitHub's job has not ended."""
    if seen is None:
        return Finding(Verification.NOT_VERIFIABLE, None, None)
    if not seen.is_over:
        return None
    github = seen.conclusion or Conclusion.NONE
    reported = job.conclusion or Conclusion.NONE
    if reported is Conclusion.NONE:
        return Finding(Verification.CONFIRMED, github, github)
    if github is reported:
        return Finding(Verification.CONFIRMED, None, github)
    return Finding(Verification.DISPUTED, worse(reported, github), github)


_UNREPORTED = frozenset({Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL})


def examine_silent(seen: ActionsJob | None) -> Conclusion | None:
    """How a silent job ends by GitHub's word; None when that is no failure, and it just timed out, unreported."""
    if seen is None or not seen.is_over or seen.conclusion in _UNREPORTED:
        return None
    return seen.conclusion or Conclusion.NONE
