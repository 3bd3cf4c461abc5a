"""A refused report, as its sender's maintainers see it on their page: the reason, the time and the run."""

from dataclasses import dataclass, replace

from crcr.decide.jobs.report import Report
from crcr.decide.model import Binding, RepoName

KEPT_ONCE = frozenset({"identity_changed", "not_authentic", "rate_limited"})
"""Only the newest refusal with one of these codes is kept: a flood of them, or a holder of an old token of the repository,
must not push out the refusals that its maintainers have to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReport:
    """`caller` is proved by its token: nobody can fill another repository's page with refusals."""

    caller: RepoName
    caller_id: int | None = None
    """The repository's immutable id, where GitHub has signed it: another repository can take over a name."""
    upstream: RepoName | None = None
    """The upstream that it concerns; None where that is unknown, and then its text names none either."""
    code: str
    detail: str
    hint: str | None = None
    delivery_id: str | None = None
    run_id: str | None = None
    workflow_name: str | None = None
    job_name: str | None = None


def make_refusal(
    caller: RepoName,
    code: str,
    detail: str,
    hint: str | None,
    report: Report | None,
    *,
    caller_id: int | None = None,
    upstream: RepoName | None = None,
) -> RefusedReport:
    """Build a refusal; `report` is None where the body could not be parsed."""
    refusal = RefusedReport(
        caller=caller, caller_id=caller_id, upstream=upstream, code=code, detail=detail, hint=hint
    )
    if report is None:
        return refusal
    return replace(
        refusal,
        delivery_id=report.delivery_id or None,
        run_id=report.run_id,
        workflow_name=report.workflow_name,
        job_name=report.job_name,
    )


def without_run(refusal: RefusedReport) -> RefusedReport:
    """Return the refusal without its run, which may belong to another upstream that does not show that it lists the caller."""
    return replace(refusal, delivery_id=None, run_id=None, workflow_name=None, job_name=None)


def for_bound_repository(refusal: RefusedReport, binding: Binding | None) -> RefusedReport:
    """Return the refusal as the page of the bound repository may show it.

    A report from a repository that has taken over the name is described in our own words, whatever was wrong with it:
    its maintainers must learn of it, but no text of the other repository belongs on their page.
    """
    if binding is None or refusal.caller_id in (None, binding.repository_id):
        return refusal
    return RefusedReport(
        caller=refusal.caller,
        caller_id=refusal.caller_id,
        code="identity_changed",
        detail=f"a repository of this name with the id {refusal.caller_id} reported; bound is {binding.repository_id}",
        hint="if the repository was re-created on purpose, an operator accepts it with `crcr repos rebind`",
    )
