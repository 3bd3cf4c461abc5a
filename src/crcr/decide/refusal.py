"""A report that was not taken, as its sender is told later: what was wrong, when, and with which run."""

from dataclasses import dataclass

from crcr.decide.model import RepoName
from crcr.decide.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """`caller` is proved: nobody can fill another's page with refusals."""

    caller: RepoName
    code: str
    detail: str
    hint: str | None = None
    delivery_id: str | None = None
    run_id: str | None = None
    workflow_name: str | None = None
    job_name: str | None = None


def refusal_of(caller: RepoName, code: str, detail: str, hint: str | None, report: Report | None) -> Refusal:
    """Where the body could not be read there is no report to name."""
    if report is None:
        return Refusal(caller=caller, code=code, detail=detail, hint=hint)
    return Refusal(
        caller=caller,
        code=code,
        detail=detail,
        hint=hint,
        delivery_id=report.delivery_id,
        run_id=report.run_id,
        workflow_name=report.workflow_name,
        job_name=report.job_name,
    )
