"""The verdicts on a commit's failed jobs, and the groups that they belong to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import text

from crcr.decide.failures.fingerprint import fingerprint_failure
from crcr.decide.failures.verdict import Confidence, Evidence, VerdictKind, evidence_url
from crcr.decide.model import RepoName
from crcr.decide.views.commit import CommitBackend
from crcr.decide.views.failures import (
    CommitGroup,
    EvidenceView,
    FailedTestView,
    FailureGroup,
    IssueState,
    JudgedBy,
    KnownFailureView,
    SeenAt,
    TestVerdict,
    VerdictView,
    describe_group,
)
from crcr.decide.views.overview import JobView
from crcr.record.failures.person_verdicts import load_person_verdicts
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.visibility import VisibleBackends

_MOST_GROUPS = 50
_MOST_FIRST = 20
_MOST_ON_BASE = 100
_KEPT_FINGERPRINTS = 1_024
BASE_SPAN = timedelta(days=7)
_EVIDENCE = msgspec.json.Decoder(list[Evidence])
_TEST_VERDICTS = msgspec.json.Decoder(list[tuple[str, VerdictKind, Confidence]])
_FAILURES = (
    "SELECT delivery, downstream, workflow, run_id, attempt, job_name, number, head_sha, at, fingerprint, fingerprints,"
    " log_fingerprint, sample, verdict, confidence, sentence, evidence, test_verdicts, verdict_before FROM failures"
    " WHERE delivery = :delivery AND upstream = :upstream"
)
_OF_DELIVERY = Statement(text(_FAILURES))
_OF_BACKEND = Statement(text(f"{_FAILURES} AND downstream = :downstream"))
_FIRST = Statement(
    text(
        "SELECT f.downstream, f.head_sha, f.number, f.at, g.sample FROM failure_fingerprints m JOIN failures f"
        " ON f.failure_id = m.failure_id JOIN failure_groups g ON g.fingerprint = m.fingerprint AND g.upstream = m.upstream"
        " AND g.downstream = f.downstream WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream"
        " ORDER BY m.failure_id LIMIT :most"
    )
)
_ON_BASE = Statement(
    text(
        "SELECT downstream FROM (SELECT f.downstream, f.kind FROM failure_fingerprints m JOIN failures f"
        " ON f.failure_id = m.failure_id WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream"
        " AND f.at >= :since ORDER BY m.failure_id DESC LIMIT :most) AS recent WHERE kind <> 'pull_request'"
    )
)
_KNOWN = Statement(
    text(
        "SELECT url, state, who, reason, until_at FROM known_failures WHERE fingerprint = :fingerprint AND upstream = :upstream"
        " AND ended_at IS NULL AND until_at > :now"
    )
)


@dataclass(frozen=True, slots=True)
class CommitFailures:
    """A delivery's recorded failures, by job."""

    upstream: RepoName
    rows: Mapping[tuple[Any, ...], Row]
    persons: Mapping[tuple[str, str], Row]
    job_names: frozenset[str] = frozenset()
    """Of the failed jobs; of a commit's hundreds of jobs most have another name."""

    def find(self, job: JobView) -> Row | None:
        return self.rows.get(_key_of(job)) if job.job_name in self.job_names else None

    def with_verdict(self, job: JobView) -> JobView:
        row = self.find(job)
        if row is None or row["verdict"] is None:
            return job
        verdicts = {
            fingerprint: TestVerdict(kind, confidence)
            for fingerprint, kind, confidence in _TEST_VERDICTS.decode(row["test_verdicts"] or b"[]")
        }
        return replace(
            job,
            verdict=self._verdict(row, job),
            failed_tests=tuple(_with_test_verdict(test, verdicts) for test in job.failed_tests)
            if verdicts
            else job.failed_tests,
        )

    def _verdict(self, row: Row, job: JobView) -> VerdictView:
        view = rules_verdict(self.upstream, row)
        person = self.persons.get((row["downstream"], job.job_name))
        if person is None:
            return view
        return replace(
            view,
            kind=VerdictKind(person["verdict"]),
            confidence=Confidence.HIGH,
            sentence=f"{person['who']} says: {person['reason']} (the rules say {view.kind.value}: {view.sentence})",
            by=JudgedBy.PERSON,
        )


def rules_verdict(upstream: RepoName, row: Row) -> VerdictView:
    """The verdict of the rules; needs its columns of `failures`."""
    evidence = tuple(
        EvidenceView(one.kind.value, evidence_url(upstream, one), one.text)
        for one in _EVIDENCE.decode(row["evidence"] or b"[]")
    )
    return VerdictView(
        kind=VerdictKind(row["verdict"]),
        confidence=Confidence(row["confidence"]),
        sentence=row["sentence"],
        evidence=evidence,
        was=VerdictKind(row["verdict_before"]) if row["verdict_before"] else None,
    )


async def add_verdicts(tx: Tx, upstream: RepoName, jobs: Iterable[JobView]) -> tuple[JobView, ...]:
    """The jobs of one backend with the verdicts on those that failed."""
    jobs = tuple(jobs)
    commits = dict.fromkeys((job.delivery, job.head_sha, job.downstream.lower()) for job in jobs)
    failures = {commit: await load_commit_failures(tx, upstream, *commit) for commit in commits}
    return tuple(
        failures[job.delivery, job.head_sha, job.downstream.lower()].with_verdict(job) for job in jobs
    )


async def load_commit_failures(
    tx: Tx, upstream: RepoName, delivery: str, head_sha: str | None, downstream: str | None = None
) -> CommitFailures:
    """The failures of all backends, or of one."""
    key = {"delivery": delivery, "upstream": upstream.key}
    if downstream is None:
        rows = await tx.all(_OF_DELIVERY, **key)
    else:
        rows = await tx.all(_OF_BACKEND, downstream=downstream, **key)
    persons = await load_person_verdicts(tx, upstream, head_sha) if rows and head_sha else {}
    by_job = {_row_key(row): row for row in rows}
    return CommitFailures(upstream, by_job, persons, frozenset(row["job_name"] for row in rows))


async def load_commit_groups(
    tx: Tx,
    failures: CommitFailures,
    backends: Sequence[CommitBackend],
    visible: VisibleBackends,
    now: datetime,
) -> tuple[CommitGroup, ...]:
    """The groups of the failed jobs that count on the commit, those with the most backends first."""
    members: dict[str, list[JobView]] = {}
    for job in (job for backend in backends for job in backend.jobs):
        row = failures.find(job)
        for fingerprint in ((row["fingerprints"] or row["log_fingerprint"] or "") if row else "").split():
            members.setdefault(fingerprint, []).append(job)
    biggest = sorted(members.items(), key=lambda item: (-len(_backends(item[1])), -len(item[1]), item[0]))
    reporting = sum(bool(backend.jobs) for backend in backends)
    groups = [
        await _load_group(tx, failures.upstream, fingerprint, jobs, visible, reporting=reporting, now=now)
        for fingerprint, jobs in biggest[:_MOST_GROUPS]
    ]
    return tuple(group for group in groups if group is not None)


async def _load_group(
    tx: Tx,
    upstream: RepoName,
    fingerprint: str,
    jobs: list[JobView],
    visible: VisibleBackends,
    *,
    reporting: int,
    now: datetime,
) -> CommitGroup | None:
    key = {"fingerprint": fingerprint, "upstream": upstream.key}
    first = await _load_first(tx, key, visible)
    if first is None:
        return None
    on_base = [
        row
        for row in await tx.all(_ON_BASE, since=to_us(now - BASE_SPAN), most=_MOST_ON_BASE, **key)
        if row["downstream"] in visible.reporting
    ]
    backends = _backends(jobs)
    group = FailureGroup(
        fingerprint=fingerprint,
        sample=first["sample"],
        backends=backends,
        jobs=tuple(dict.fromkeys(f"{job.downstream}:{job.job_name}" for job in jobs)),
        first_seen=SeenAt(sha=first["head_sha"], number=first["number"], at=from_us(first["at"])),
        known=await load_known(tx, key, now),
    )
    here = {(job.number, job.head_sha) for job in jobs}
    is_first_here = any(
        first["number"] == number if number is not None else first["head_sha"] == sha for number, sha in here
    )
    return CommitGroup(
        **{name: getattr(group, name) for name in FailureGroup.__dataclass_fields__},
        is_first_here=is_first_here,
        on_base=len(on_base),
        members=tuple(jobs),
        sentence=describe_group(
            group,
            failing=len(backends),
            of=reporting,
            is_first_here=is_first_here,
            on_base=len(on_base),
        ),
    )


async def _load_first(tx: Tx, key: Mapping[str, str], visible: VisibleBackends) -> Row | None:
    """The first failure of the group that a reader may see; nearly always the first of all."""
    for most in (1, _MOST_FIRST):
        rows = await tx.all(_FIRST, most=most, **key)
        first = next((row for row in rows if row["downstream"] in visible.reporting), None)
        if first is not None:
            return first
    return None


async def load_known(tx: Tx, key: Mapping[str, str], now: datetime) -> KnownFailureView | None:
    row = await tx.one(_KNOWN, now=to_us(now), **key)
    return None if row is None else known_view(row)


def known_view(row: Row) -> KnownFailureView:
    return KnownFailureView(
        url=row["url"],
        state=IssueState(row["state"]),
        by=row["who"],
        until=from_us(row["until_at"]),
        reason=row["reason"],
    )


def _backends(jobs: Iterable[JobView]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job.downstream for job in jobs))


def _with_test_verdict(test: FailedTestView, verdicts: Mapping[str, TestVerdict]) -> FailedTestView:
    return replace(test, verdict=verdicts.get(_find_fingerprint(test)))


@lru_cache(_KEPT_FINGERPRINTS)
def _find_fingerprint(test: FailedTestView) -> str:
    """Finding it takes many times as long as the rest of a page's line, and a test that fails is on many pages."""
    return fingerprint_failure([test]).fingerprint or ""


def _row_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("downstream", "workflow", "run_id", "attempt", "job_name"))


def _key_of(job: JobView) -> tuple[Any, ...]:
    return job.downstream.lower(), job.workflow, job.run_id, job.attempt, job.job_name
