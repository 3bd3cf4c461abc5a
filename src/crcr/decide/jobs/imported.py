"""History that another relay recorded: which of its results become ours, and when they count.

An imported result counts in matrix, sums and levels as if it had been reported here, on its own day. It is kept under a
delivery of its own name, which no webhook can have: so no check, gate or report ever finds it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.jobs.ingested import IngestedResult
from crcr.decide.jobs.report import SELF_REPORTS, ReportStatus
from crcr.decide.model import Conclusion, RepoName
from crcr.decide.statistics.window import ResultKind, result_kind

DELIVERY_PREFIX = "imported-"
"""Of the deliveries that imported results belong to."""
_SKEW = timedelta(hours=1)
_LONGEST = timedelta(days=366)


class NotImported(StrEnum):
    """Why a result is not taken."""

    UNREADABLE = "it is not a result that can be read"
    RUNNING = "it had not ended when it was written"
    OTHER_UPSTREAM = "its upstream is not one of this relay's"
    NOT_COUNTED = "its event is not counted here"
    WITHOUT_TIME = "it has neither a start nor an end"
    OLD = "it is older than CRCR_KEEP_JOBS_DAYS"
    FUTURE = "its time is in the future"
    KNOWN = "it was reported to this relay itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """A result with the times that it counts at."""

    upstream: RepoName
    result: IngestedResult
    began_at: datetime
    completed_at: datetime
    sent_at: datetime
    """When its dispatch was sent, as far as it can be known."""

    @property
    def delivery(self) -> str:
        """For a self-report its commit, as for those that were sent here; empty where it is unknown."""
        report = self.result.report
        if self.is_self_report:
            return self.result.about.head_sha or ""
        return f"{DELIVERY_PREFIX}{report.delivery_id}"

    @property
    def is_self_report(self) -> bool:
        return self.result.report.event_type in SELF_REPORTS

    @property
    def conclusion(self) -> Conclusion:
        return self.result.report.conclusion or Conclusion.NONE


def plan_import(
    result: IngestedResult, upstreams: Iterable[RepoName], *, oldest: datetime | None, now: datetime
) -> ImportedJob | NotImported:
    """Decide whether a result is taken. `oldest` is when the oldest results that are still kept began."""
    report, named = result.report, (result.about.upstream or "").lower()
    upstream = next((upstream for upstream in upstreams if upstream.key == named), None)
    if upstream is None:
        return NotImported.OTHER_UPSTREAM
    if result_kind(report.event_type) in {None, ResultKind.INGESTED}:
        return NotImported.NOT_COUNTED
    if report.status is ReportStatus.IN_PROGRESS:
        return NotImported.RUNNING
    times = _times(result)
    if times is None:
        return NotImported.WITHOUT_TIME
    began_at, completed_at = times
    if oldest is not None and began_at < oldest:
        return NotImported.OLD
    if completed_at > now + _SKEW:
        return NotImported.FUTURE
    waited = timedelta(seconds=result.queue_s or 0.0)
    return ImportedJob(
        upstream=upstream,
        result=result,
        began_at=began_at,
        completed_at=completed_at,
        sent_at=began_at - waited,
    )


def _times(result: IngestedResult) -> tuple[datetime, datetime] | None:
    """When the job began and ended: the claimed times, completed by how long it took."""
    report, took = result.report, timedelta(seconds=result.execution_s or 0.0)
    began, completed = report.started_at, report.completed_at
    if began is None and completed is None:
        return None
    try:
        began = began or (completed - took if completed else None)
        completed = completed or (began + took if began else None)
    except OverflowError:
        return None
    if began is None or completed is None or completed - began > _LONGEST:
        return None
    return began, max(began, completed)


@dataclass(frozen=True, slots=True)
class PullDispatch:
    """A dispatch of a pull request, for the question which of them a newer head superseded."""

    delivery: str
    head_sha: str | None
    created_at: int


def superseded_dispatches(dispatches: Iterable[PullDispatch]) -> dict[str, int]:
    """Return, for dispatches of one pull request to one backend, those that a newer head superseded, and when."""
    found: dict[str, int] = {}
    newer_at: dict[str | None, int] = {}
    for dispatch in sorted(dispatches, key=lambda d: (d.created_at, d.delivery), reverse=True):
        others = [at for sha, at in newer_at.items() if sha != dispatch.head_sha]
        if others:
            found[dispatch.delivery] = min(others)
        newer_at[dispatch.head_sha] = dispatch.created_at
    return found
