"""The verdict `missing` on a backend that was dispatched and should have reported: is it silent for everybody, or only here?

Computed for a page when it is read, because no event says that nothing came.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from crcr.decide.failures.verdict import Confidence, EvidenceKind, VerdictKind
from crcr.decide.globs import name_glob
from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import ANSWER_WITHIN
from crcr.decide.views.commit import BackendState, CommitBackend
from crcr.decide.views.failures import EvidenceView, VerdictView

_MOST_NAMES = 3
_NOTHING = {
    BackendState.NEVER_STARTED: "Its run never started.",
    BackendState.UNANSWERED: "No run answered the dispatch.",
    BackendState.UNREPORTED: "Its run ended on GitHub without a report.",
    BackendState.STARTED: "A run exists on GitHub, and none of its jobs was reported in time.",
    BackendState.NO_REPORT: "Nothing was reported within an hour of the dispatch.",
}


@dataclass(frozen=True, slots=True)
class BackendReporting:
    """Whether a backend reports at all."""

    last_at: datetime | None
    """When the newest job that it ever reported began."""
    silent: bool
    """The dispatches since then are unanswered, and enough of them to call it silent."""


def reports_nothing(backend: CommitBackend, time_limit: timedelta, now: datetime) -> bool:
    """Whether nothing came of a dispatch that should have been answered by now; a run that exists has the gate's time."""
    sent_at = _awaited_since(backend)
    if sent_at is None or backend.jobs or backend.state not in _NOTHING:
        return False
    waits = {BackendState.NO_REPORT: ANSWER_WITHIN, BackendState.STARTED: time_limit}
    return now - sent_at >= waits.get(backend.state, timedelta(0))


def judge_silence(backend: CommitBackend, reporting: BackendReporting, upstream: RepoName) -> VerdictView:
    """The verdict on a backend of which `reports_nothing` is true."""
    sent_at = _awaited_since(backend)
    last = f"{reporting.last_at:%d %b %H:%M} UTC" if reporting.last_at else ""
    if reporting.last_at is not None and sent_at is not None and reporting.last_at >= sent_at:
        where, confidence = f"only here: it has reported for others since, last at {last}", Confidence.HIGH
    elif reporting.silent:
        since = f"since {last}" if last else "ever"
        where, confidence = f"it is silent for everybody: no report {since}", Confidence.HIGH
    else:
        since = f"the last one came at {last}" if last else "there never was one"
        where, confidence = f"no other report has come since; {since}", Confidence.MEDIUM
    sentence = f"{_NOTHING[backend.state]} {where[0].upper()}{where[1:]}."
    return _missing(backend, upstream, sentence, confidence)


def judge_missing_jobs(
    backend: CommitBackend,
    expected_jobs: tuple[str, ...],
    time_limit: timedelta,
    upstream: RepoName,
    now: datetime,
) -> VerdictView | None:
    """The verdict where some jobs reported and others, which the allowlist expects, did not in time."""
    sent_at = _awaited_since(backend)
    if sent_at is None or not backend.jobs or now - sent_at < time_limit:
        return None
    names = [job.job_name for job in backend.jobs]
    absent = [glob for glob in expected_jobs if not any(name_glob(glob).matches(name) for name in names)]
    if not absent or backend.jobs_left_out:
        return None
    listed = ", ".join(absent[:_MOST_NAMES])
    more = f" and {len(absent) - _MOST_NAMES:,} more" if len(absent) > _MOST_NAMES else ""
    sentence = (
        f"Expected and never reported: {listed}{more}. Other jobs of the backend reported for this commit."
    )
    return _missing(backend, upstream, sentence, Confidence.HIGH)


def _awaited_since(backend: CommitBackend) -> datetime | None:
    """When it was sent, if an answer is expected: the run of a superseded commit may have been cancelled."""
    dispatch = backend.dispatch
    if dispatch is None or dispatch.superseded_at is not None or dispatch.test or dispatch.action == "closed":
        return None
    return dispatch.sent_at


def _missing(
    backend: CommitBackend, upstream: RepoName, sentence: str, confidence: Confidence
) -> VerdictView:
    page = EvidenceView(
        EvidenceKind.BACKEND.value, f"/crcr/{backend.name}?upstream={upstream}", "its other results"
    )
    return VerdictView(kind=VerdictKind.MISSING, confidence=confidence, sentence=sentence, evidence=(page,))
