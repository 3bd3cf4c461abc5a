"""Commits with backends, runs and jobs for tests of the gate and the checks: complete defaults, changed by keyword."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.checks.commit import (
    BackendResults,
    CommitFacts,
    DispatchRun,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.checks.gate import GatePolicy
from crcr.decide.failures.verdict import Confidence, Verdict, VerdictKind
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SENT = NOW - HOUR
LONG_AGO = NOW - 7 * HOUR
"""Long enough ago for the gate's time-out to have passed."""
POLICY = GatePolicy(
    gate_timeout=6 * HOUR,
    job_timeout=3 * HOUR,
    excuses=frozenset({VerdictKind.PRE_EXISTING, VerdictKind.FLAKY}),
)
UPSTREAM = RepoName("up/stream")
HEAD = "a" * 40


def an_entry(name: str = "org/one", **options: Any) -> AllowlistEntry:
    return replace(AllowlistEntry(name=RepoName(name), level=Level.L4, device="npu"), **options)


def a_verdict(kind: VerdictKind = VerdictKind.FLAKY, **facts: Any) -> Verdict:
    """Return a verdict with high confidence."""
    verdict = Verdict(
        kind=kind, confidence=Confidence.HIGH, sentence="The base failed alike 3 times in a row."
    )
    return replace(verdict, **facts)


def a_job(conclusion: Conclusion | None = Conclusion.SUCCESS, name: str = "build", **facts: Any) -> JobResult:
    """Return a completed job of run 10, confirmed by GitHub; see `an_open_job` for one that runs."""
    job = JobResult(
        workflow=".github/workflows/ci.yml",
        workflow_name="CI",
        run_id="10",
        attempt=1,
        name=name,
        state=JobState.COMPLETED,
        conclusion=conclusion,
        verification=Verification.CONFIRMED,
        began_at=SENT + MINUTE,
        ended_at=SENT + 20 * MINUTE,
    )
    return replace(job, **facts)


def an_open_job(name: str = "build", **facts: Any) -> JobResult:
    return a_job(None, name, **({"state": JobState.IN_PROGRESS, "ended_at": None} | facts))


def a_silent_job(name: str = "build", **facts: Any) -> JobResult:
    return a_job(None, name, **({"state": JobState.TIMED_OUT} | facts))


def a_run(run_id: str = "10", **facts: Any) -> DispatchRun:
    """Return a run that has ended; a re-run was requested just now."""
    seen = SENT + MINUTE
    run = DispatchRun(
        run_id=run_id,
        workflow=".github/workflows/ci.yml",
        attempt=1,
        attempt_at=seen,
        first_seen_at=seen,
        over=True,
        conclusion=Conclusion.SUCCESS,
        rerun_at=NOW if facts.get("rerun_from") else None,
    )
    return replace(run, **facts)


def a_backend(
    *jobs: JobResult, name: str = "org/one", options: dict[str, Any] | None = None, **facts: Any
) -> BackendResults:
    """Return an L4 backend whose only run is over, and was listed long enough after it began."""
    backend = BackendResults(
        name=RepoName(name),
        entry=an_entry(name, **(options or {})),
        level=Level.L4,
        state=DispatchState.SENT,
        created_at=SENT,
        sent_at=SENT,
        listed_at=NOW,
        readable=True,
        runs=(a_run(),),
        jobs=jobs,
    )
    return replace(backend, **facts)


def an_unsent_backend(
    state: DispatchState, reason: str | None = None, *, name: str = "org/one", **facts: Any
) -> BackendResults:
    nothing = {"sent_at": None, "listed_at": None, "readable": None, "runs": ()}
    return a_backend(name=name, state=state, reason=reason, **(nothing | facts))


def a_waiver(downstream: str = "org/one", job: str | None = None, **facts: Any) -> GrantedWaiver:
    waiver = GrantedWaiver(
        downstream=RepoName(downstream), job=job, who="mia", reason="known on the new driver", number=7
    )
    return replace(waiver, **facts)


def a_subject(*backends: BackendResults, **facts: Any) -> MergeSubject:
    subject = MergeSubject(number=7, delivery="guid-7", received_at=SENT, backends=backends)
    return replace(subject, **facts)


def a_group(*backends: BackendResults, **facts: Any) -> MergeSubject:
    facts = {"number": None, "numbers": (7, 8), "delivery": "guid-group"} | facts
    return a_subject(*backends, **facts)


def a_commit(*subjects: MergeSubject) -> CommitFacts:
    return CommitFacts(upstream=UPSTREAM, head_sha=HEAD, subjects=subjects)
