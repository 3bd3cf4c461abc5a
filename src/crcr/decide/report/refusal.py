"""A report that was not taken, as its sender is told later: what was wrong, when, and with which run."""

from dataclasses import dataclass, replace

from crcr.decide.model import Binding, RepoName
from crcr.decide.report.report import Report

KEPT_ONCE = frozenset({"identity_changed", "not_authentic", "rate_limited"})
"""Of these the newest takes the place of the one before: a storm of them, or somebody who only holds an old token of
the repository, must not push out what its maintainers have to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReport:
    """`caller` is proved: nobody can fill another's page with refusals."""

    caller: RepoName
    caller_id: int | None = None
    """The repository's immutable id, where GitHub has signed it: a name can change hands."""
    upstream: RepoName | None = None
    """The upstream that it is about; None where nobody can tell. Then its text names none either."""
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
    """Where the body could not be read there is no report to name."""
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
    """What may stand where the run may have been for another upstream, which does not show that it lists the caller."""
    return replace(refusal, delivery_id=None, run_id=None, workflow_name=None, job_name=None)


def for_bound_repository(refusal: RefusedReport, binding: Binding | None) -> RefusedReport:
    """What may stand on the page of the bound repository.

    Who has taken over its name is told of in our own words, whatever was wrong with the report: the maintainers want
    to know of it, and not a word of the stranger's belongs on their page.
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
