"""The breakages of red jobs on the base branch with their candidates, worked out when they are read.

Red jobs are found as for the list of failing jobs. Each costs two statements for its results, and each breakage a few more for
the evidence about its range; `limit` bounds the number of jobs.
"""

# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.bisection.request import refuse_backend
from crcr.decide.culprits.commit_range import (
    BreakageRange,
    CommitResult,
    Fingerprint,
    count_chance_failures,
    find_breakages,
)
from crcr.decide.culprits.merged_pulls import BaseCommit
from crcr.decide.culprits.ranking import CulpritEvidence, OtherRange, rank_candidates
from crcr.decide.failures.history import FailedAs
from crcr.decide.failures.verdict import Confidence, VerdictKind
from crcr.decide.statistics.figures import EndedAs
from crcr.decide.views.culprits import MOST_CANDIDATES, CulpritQuery, JobCulprits
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.culprits.evidence import (
    AlikeFailures,
    RedJob,
    describe_range,
    read_alike,
    read_commits,
    read_earlier_pulls,
    read_passed_on,
    read_pulls_passed_at,
    read_test_files,
)
from crcr.record.views.culprits.in_tree import InTreeCulprits
from crcr.record.views.failures.failing_jobs import HISTORY, find_red_jobs, read_base_branch
from crcr.record.views.visibility import VisibleBackends

_MOST_PASSES = 60
_MOST_FAILURES = 1_000
_MOST_MEMBERS = 200
_MOST_BISECTIONS = 5
_MOST_OTHER_JOBS = 4
_TEST_VERDICTS = msgspec.json.Decoder(list[tuple[str, VerdictKind, Confidence]])
_OF_JOB = (
    "{0}.upstream = :upstream AND {0}.downstream = :downstream AND {0}.workflow = :workflow"
    " AND {0}.job_name = :job_name"
)
_ON_COMMITS = " JOIN base_commits c ON c.sha = {0}.head_sha AND c.upstream = {0}.upstream AND c.ref = :ref"
# The newest passes of any branch are read by their index, and those on the base chosen among them.
_PASSES = Statement(
    text(
        "SELECT p.head_sha, p.at, c.position, p.tests_total FROM (SELECT j.head_sha, j.upstream, j.tests_total,"
        " coalesce(j.completed_at, j.in_progress_at) AS at FROM jobs j"
        f" WHERE {_OF_JOB.format('j')} AND j.in_progress_at >= :since AND j.event <> 'pull_request'"
        " AND j.event IN ('push', 'merge_group') AND j.ended_as IS NOT NULL AND j.ended_as = 'success'"
        f" AND j.imported = 0 ORDER BY j.in_progress_at DESC LIMIT :most) AS p{_ON_COMMITS.format('p')}"
    )
)
_FAILURES = Statement(
    text(
        "SELECT f.failure_id, f.delivery, f.run_id, f.attempt, f.head_sha, f.at, c.position, f.ended, f.verdict, f.confidence,"
        " f.passed_at, f.fingerprints, f.test_verdicts, j.ended_as, j.tests_total"
        f" FROM failures f{_ON_COMMITS.format('f')}"
        " LEFT JOIN jobs j ON j.delivery = f.delivery AND j.upstream = f.upstream AND j.downstream = f.downstream"
        " AND j.workflow = f.workflow AND j.run_id = f.run_id AND j.attempt = f.attempt AND j.job_name = f.job_name"
        f" WHERE {_OF_JOB.format('f')} AND f.kind <> 'pull_request' AND f.kind = 'push' AND f.at >= :since"
        " ORDER BY f.at DESC LIMIT :most"
    )
)
_BISECTIONS = Statement(
    text(
        "SELECT bisection_id, culprit, fingerprints FROM bisections WHERE upstream = :upstream AND downstream = :downstream"
        " AND job_name = :job_name AND workflow = :workflow AND created_at >= :since"
        " ORDER BY bisection_id DESC LIMIT :most"
    )
)
_FAILED_WITH = Statement(
    text(
        "SELECT f.downstream, f.workflow, f.job_name, f.kind FROM failure_fingerprints m"
        " JOIN failures f ON f.failure_id = m.failure_id WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream"
        " ORDER BY m.failure_id DESC LIMIT :most"
    )
)


async def culprit_list(
    tx: Tx, query: CulpritQuery, visible: VisibleBackends, now: datetime
) -> tuple[JobCulprits, ...]:
    """The breakages of the red jobs, by backend and job; of one job the oldest first. In-tree checks are the last ones."""
    is_upstream = query.backend is not None and query.backend.key == query.upstream.key
    if query.backend is not None and not is_upstream:
        visible.entry(query.backend)
    branch = await read_base_branch(tx, query.upstream)
    if branch is None:
        return ()
    in_tree = InTreeCulprits(tx, query.upstream.key, branch)
    reader = _CulpritReader(tx, visible, now, in_tree)
    found: list[JobCulprits] = []
    jobs = await _choose_jobs(tx, query, branch, visible, now)
    for job in jobs:
        found += await reader.read(job, query.fingerprint)
    if query.fingerprint is None and (query.backend is None or is_upstream):
        found += await in_tree.find_culprits(query, query.limit - len(jobs))
    return tuple(found)


async def _choose_jobs(
    tx: Tx, query: CulpritQuery, branch: str, visible: VisibleBackends, now: datetime
) -> list[RedJob]:
    rows = await find_red_jobs(tx, query.upstream, branch, now, query.backend)
    jobs = [
        RedJob(query.upstream.key, branch, row["downstream"], row["workflow"], row["job_name"])
        for row in rows
        if row["downstream"] in visible.reporting and query.job in (None, row["job_name"])
    ]
    if query.fingerprint is not None and jobs:
        mark = {"fingerprint": query.fingerprint, "upstream": query.upstream.key}
        members = await tx.all(_FAILED_WITH, most=_MOST_MEMBERS, **mark)
        failed = {(row["downstream"], row["workflow"], row["job_name"]) for row in members}
        jobs = [job for job in jobs if job.key in failed]
    return jobs[: query.limit]


@dataclass(frozen=True, slots=True)
class RedJobHistory:
    """The results of a job on the base branch, and the breakages that they show."""

    breakages: tuple[BreakageRange, ...]
    failures: tuple[Row, ...]
    """Newest first."""
    passes: int = 0
    """The recorded ones, up to a limit."""
    chance_failures: int = 0
    """Commits where it failed by chance."""

    def newest_failure(self, breakage: BreakageRange) -> Row:
        return next(row for row in self.failures if row["head_sha"] == breakage.newest.sha)

    def first_failure(self, breakage: BreakageRange) -> int:
        ids = (row["failure_id"] for row in self.failures if row["head_sha"] == breakage.first_bad.sha)
        return int(min(ids))


class _CulpritReader:
    """Reads the breakages of jobs; each job's results are read once, also as evidence for another job."""

    def __init__(self, tx: Tx, visible: VisibleBackends, now: datetime, in_tree: InTreeCulprits) -> None:
        self._tx = tx
        self._in_tree = in_tree
        self._visible = visible
        self._since = now - HISTORY
        self._histories: dict[tuple[str, str, str], RedJobHistory] = {}

    async def read(self, job: RedJob, fingerprint: str | None) -> list[JobCulprits]:
        history = await self._read_history(job)
        wanted = [one for one in history.breakages if fingerprint in (None, *one.fingerprints)]
        return [await self._name_culprits(job, history, breakage) for breakage in wanted]

    async def _name_culprits(
        self, job: RedJob, history: RedJobHistory, breakage: BreakageRange
    ) -> JobCulprits:
        entry = self._visible.reporting[job.downstream]
        commits = await read_commits(self._tx, job.branch, breakage)
        bisections = await self._read_bisections(job, breakage)
        evidence = replace(
            await self._read_evidence(job, entry, history, breakage, commits),
            bisected={
                row["culprit"]: row["bisection_id"] for row in bisections if row["culprit"] is not None
            },
        )
        return JobCulprits(
            backend=entry.name,
            workflow=job.workflow,
            job=job.job_name,
            range=describe_range(breakage, commits),
            candidates=rank_candidates(breakage, commits, evidence)[:MOST_CANDIDATES],
            fingerprints=tuple(mark for mark in breakage.fingerprints if mark is not None),
            since=breakage.first_bad.at,
            bisection=bisections[0]["bisection_id"] if bisections else None,
            may_bisect=refuse_backend(entry, suspended=False, automatic=False) is None,
        )

    async def _read_bisections(self, job: RedJob, breakage: BreakageRange) -> list[Row]:
        """The bisections that began since the breakage, newest first; those of another failure of the job are left out."""
        since = to_us(breakage.first_bad.at)
        rows = await self._tx.all(_BISECTIONS, **job.names, since=since, most=_MOST_BISECTIONS)
        marks = {mark for mark in breakage.fingerprints if mark is not None}
        return [row for row in rows if not marks or _may_search(row, marks)]

    async def _read_evidence(
        self,
        job: RedJob,
        entry: AllowlistEntry,
        history: RedJobHistory,
        breakage: BreakageRange,
        commits: Sequence[BaseCommit],
    ) -> CulpritEvidence:
        numbers = {commit.number for commit in commits if commit.number is not None}
        first, newest = history.first_failure(breakage), history.newest_failure(breakage)
        alike = await read_alike(
            self._tx, job, breakage, self._visible, first_failure=first, since=self._since
        )
        failed = {name: newest[name] for name in ("delivery", "run_id", "attempt")}
        passed_on = await read_passed_on(self._tx, job, numbers)
        failed_on = alike.find_failed_on(job, breakage, numbers, self._visible)
        return CulpritEvidence(
            # A later head of the pull request that passed was merged without the failure.
            failed_on={
                number: other for number, other in failed_on.items() if other or number not in passed_on
            },
            passed_on=passed_on,
            globs=entry.paths,
            test_files=await read_test_files(self._tx, job, failed, breakage.fingerprints),
            elsewhere=await self._read_elsewhere(job, breakage, alike),
            pulls_passed_at=await read_pulls_passed_at(self._tx, job, breakage, entry),
            pulls_failed_at=alike.find_failed_at(breakage, numbers),
            came_with=await read_earlier_pulls(self._tx, job.branch, breakage),
            in_tree=await self._in_tree.read_evidence(breakage, commits),
        )

    async def _read_elsewhere(
        self, job: RedJob, breakage: BreakageRange, alike: AlikeFailures
    ) -> tuple[OtherRange, ...]:
        """Other jobs with a known fingerprint of the breakage whose ranges tell some of its commits from others."""
        marks = {mark for mark in breakage.fingerprints if mark is not None}
        found = []
        for key in [key for key in alike.on_base() if marks and key != job.key][:_MOST_OTHER_JOBS]:
            other = RedJob(job.upstream, job.ref, *key)
            for theirs in (await self._read_history(other)).breakages:
                if not marks.isdisjoint(theirs.fingerprints) and _tells_apart(theirs, breakage):
                    name = f"{self._visible.full_name(other.downstream)}: {other.job_name}"
                    good = theirs.good.position if theirs.good else None
                    found.append(OtherRange(name, good, theirs.bad.position))
        return tuple(found)

    async def _read_history(self, job: RedJob) -> RedJobHistory:
        if job.key not in self._histories:
            self._histories[job.key] = await read_history(self._tx, job, self._since)
        return self._histories[job.key]


async def read_history(tx: Tx, job: RedJob, since: datetime) -> RedJobHistory:
    place: dict[str, Any] = {**job.names, "ref": job.ref, "since": to_us(since)}
    passes = await tx.all(_PASSES, most=_MOST_PASSES, **place)
    failures = [row for row in await tx.all(_FAILURES, most=_MOST_FAILURES, **place) if _counts(row)]
    results = [_read_pass(row) for row in passes]
    results += [result for row in failures for result in _read_failure(row)]
    return RedJobHistory(
        find_breakages(results), tuple(failures), len(passes), count_chance_failures(results)
    )


def _may_search(bisection: Row, marks: set[str]) -> bool:
    """Whether a bisection searched for one of these failures; one of a range given by hand may not say for which."""
    return not bisection["fingerprints"] or not marks.isdisjoint(bisection["fingerprints"].split())


def _tells_apart(other: BreakageRange, breakage: BreakageRange) -> bool:
    """Whether the other range ends inside this one, or begins there."""
    begins_inside = other.good is not None and breakage.contains(other.good.position)
    ends_inside = breakage.contains(other.bad.position) and other.bad.position < breakage.bad.position
    return begins_inside or ends_inside


def _counts(row: Row) -> bool:
    """A cancelled job has no result, and a superseded one was replaced by another run."""
    is_void = row["ended"] == FailedAs.CANCELLED.value or row["ended_as"] == EndedAs.SUPERSEDED.value
    return not is_void


def _read_pass(row: Row) -> CommitResult:
    return CommitResult(
        position=row["position"],
        sha=row["head_sha"],
        at=from_us(row["at"]),
        passed=True,
        tests=row["tests_total"],
    )


def _read_failure(row: Row) -> Iterable[CommitResult]:
    """The failure, and the pass of a re-run where there was one."""
    place = {"position": row["position"], "sha": row["head_sha"]}
    if row["passed_at"] is not None:
        yield CommitResult(at=from_us(row["passed_at"]), passed=True, **place)
    is_sick = row["ended"] == FailedAs.FAILURE.value and row["verdict"] == VerdictKind.INFRASTRUCTURE.value
    yield CommitResult(
        at=from_us(row["at"]),
        passed=False,
        sick=is_sick,
        fingerprints=frozenset((row["fingerprints"] or "").split()),
        tests=row["tests_total"],
        flaky=frozenset(_find_flaky(row)),
        **place,
    )


def _find_flaky(row: Row) -> Iterable[Fingerprint]:
    """With low confidence it came and went only once: it may have been broken and fixed."""
    is_flaky = row["verdict"] == VerdictKind.FLAKY.value and row["confidence"] != Confidence.LOW.value
    if not row["fingerprints"] and is_flaky:
        yield None
    for fingerprint, kind, confidence in _TEST_VERDICTS.decode(row["test_verdicts"] or b"[]"):
        if kind is VerdictKind.FLAKY and confidence is not Confidence.LOW:
            yield fingerprint
