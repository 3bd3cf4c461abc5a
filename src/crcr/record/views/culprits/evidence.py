"""Reads the evidence about the changes of a range: their commits, their pull requests, and who else fails alike.

Every query follows an index and has a limit. Failures of backends that the reader may not see are left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry, TestedCommit
from crcr.decide.culprits.commit_range import BreakageRange
from crcr.decide.culprits.merged_pulls import BaseCommit, assign_pulls
from crcr.decide.failures.fingerprint import fingerprint_failure
from crcr.decide.failures.history import FailedAs
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.culprits import CulpritRange
from crcr.record.failures.recorder import read_failed_tests
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.visibility import VisibleBackends

_MOST_COMMITS = 500
"""Of a range: those before its bad end."""
_MOST_WITHOUT_GOOD = 50
_MOST_ALIKE = 200
_MOST_FINGERPRINTS = 3
_MOST_PULL_RESULTS = 300
_MOST_EARLIER = 2
_WIDEST_EARLIER = 30
"""An earlier breakage with more commits in its range names nobody."""
_ENOUGH_PULLS = 2
"""So many unrelated pull requests must fail alike before they count."""
_AROUND = timedelta(days=2)
"""How long after the first failure results of pull requests still tell about the range."""

_COMMITS = Statement(
    text(
        "SELECT sha, position, before, title, number, reverts, paths, path_count FROM base_commits"
        " WHERE upstream = :upstream AND ref = :ref AND position > :after AND position <= :until"
        " ORDER BY position DESC LIMIT :most"
    )
)
_MERGED_AS = (
    "SELECT merge_commit_sha, number FROM pulls WHERE merge_commit_sha IN {0} AND merge_commit_sha IS NOT NULL"
    " AND upstream = :upstream"
)
_MERGED = Statement(
    text(_MERGED_AS.format("(SELECT value FROM json_each(:shas))")),
    on_postgresql=text(_MERGED_AS.format("(SELECT json_array_elements_text(CAST(:shas AS json)))")),
)
_ALIKE = (
    "SELECT f.failure_id, f.downstream, f.workflow, f.job_name, f.kind, f.number, f.ended, f.verdict, f.passed_at,"
    " f.built_on_exact, c.position, p.stacked_on, p.is_open FROM {0}"
    " LEFT JOIN base_commits c ON c.sha = f.built_on AND c.upstream = f.upstream AND c.ref = :ref"
    " LEFT JOIN pulls p ON p.upstream = f.upstream AND p.number = f.number"
)
_WITH_FINGERPRINT = Statement(
    text(
        _ALIKE.format("failure_fingerprints m JOIN failures f ON f.failure_id = m.failure_id")
        + " WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream AND m.failure_id <= :until"
        " ORDER BY m.failure_id DESC LIMIT :most"
    )
)
_WITHOUT_DETAILS = Statement(
    text(
        _ALIKE.format("failures f")
        + " WHERE f.upstream = :upstream AND f.downstream = :downstream AND f.job_name = :job_name AND f.at >= :since"
        " AND f.at <= :until AND f.workflow = :workflow AND f.fingerprints IS NULL ORDER BY f.at DESC LIMIT :most"
    )
)
_PASSED_ON = (
    # From the few pull requests to their deliveries and jobs, never the other way round.
    "SELECT DISTINCT p.number FROM pulls p CROSS JOIN deliveries v CROSS JOIN jobs j WHERE p.upstream = :upstream"
    " AND p.number IN {0} AND v.upstream = p.upstream AND v.number = p.number AND v.head_sha = p.head_sha"
    " AND j.delivery = v.guid AND j.upstream = v.upstream AND j.downstream = :downstream AND j.workflow = :workflow"
    " AND j.job_name = :job_name AND j.conclusion = coalesce(j.expected, 'success')"
)
_PASSED = Statement(
    text(_PASSED_ON.format("(SELECT value FROM json_each(:numbers))")),
    on_postgresql=text(
        _PASSED_ON.format(
            "(SELECT CAST(one AS integer) FROM json_array_elements_text(CAST(:numbers AS json)) AS one)"
        )
    ),
)
_PULLS_PASSED_AT = Statement(
    text(
        "SELECT max(c.position) AS position FROM (SELECT number, head_sha, workflow, job_name, ended_as, upstream"
        " FROM jobs WHERE upstream = :upstream AND downstream = :downstream AND event = 'pull_request'"
        " AND completed_at >= :since AND completed_at <= :until AND ended_as IS NOT NULL AND imported = 0"
        " ORDER BY completed_at DESC LIMIT :most) AS j"
        " JOIN pulls p ON p.upstream = j.upstream AND p.number = j.number AND p.head_sha = j.head_sha"
        " JOIN base_commits c ON c.sha = p.merge_base AND c.upstream = j.upstream AND c.ref = :ref"
        " WHERE j.workflow = :workflow AND j.job_name = :job_name AND j.ended_as = 'success' AND p.base_ref = :ref"
        " AND c.position > :good AND c.position < :bad"
    )
)
_FAILED_TESTS = Statement(
    text(
        "SELECT failed_tests FROM jobs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
        " AND job_name = :job_name"
    )
)
_AFTER_ALL = 2**62


@dataclass(frozen=True, slots=True)
class RedJob:
    """A job of the base branch, by the columns of its results."""

    upstream: str
    ref: str
    downstream: str
    workflow: str
    job_name: str

    @property
    def branch(self) -> dict[str, str]:
        return {"upstream": self.upstream, "ref": self.ref}

    @property
    def names(self) -> dict[str, str]:
        columns = ("upstream", "downstream", "workflow", "job_name")
        return {name: getattr(self, name) for name in columns}

    @property
    def key(self) -> tuple[str, str, str]:
        return self.downstream, self.workflow, self.job_name


async def read_commits(tx: Tx, branch: Mapping[str, str], breakage: BreakageRange) -> tuple[BaseCommit, ...]:
    """The commits of the range in their order, each with its pull request; the last ones of a very long range."""
    good = breakage.good
    after = good.position if good is not None else -1
    most = _MOST_COMMITS if good is not None else _MOST_WITHOUT_GOOD
    return await read_commits_between(tx, branch, after, breakage.bad.position, most)


def describe_range(breakage: BreakageRange, commits: Sequence[BaseCommit]) -> CulpritRange:
    """The range of a breakage, `commits` being those that were read of it."""
    good = breakage.good
    number = len(commits)
    if good is not None and number == _MOST_COMMITS:
        number = breakage.bad.position - good.position
    return CulpritRange(
        good=good.sha if good else None, bad=breakage.bad.sha, commits=number if good else None
    )


async def read_commits_between(
    tx: Tx, branch: Mapping[str, str], after: int, until: int, most: int
) -> tuple[BaseCommit, ...]:
    """The last commits of a branch between two positions, in their order, each with its pull request."""
    rows = await tx.all(_COMMITS, after=after, until=until, most=most, **branch)
    shas = json.dumps([row["sha"] for row in rows])
    merged = await tx.all(_MERGED, shas=shas, upstream=branch["upstream"]) if rows else []
    merged_as = {row["merge_commit_sha"]: row["number"] for row in merged}
    return assign_pulls((_commit_from(row) for row in rows), merged_as)


def _commit_from(row: Row) -> BaseCommit:
    return BaseCommit(
        sha=row["sha"],
        position=row["position"],
        pushed_on=row["before"],
        title=row["title"] or "",
        number=row["number"],
        reverts=row["reverts"],
        paths=tuple(json.loads(row["paths"] or "[]")),
        path_count=row["path_count"],
    )


async def read_earlier_pulls(tx: Tx, branch: Mapping[str, str], breakage: BreakageRange) -> frozenset[int]:
    """The pull requests in the ranges of earlier breakages with the same failure, where these are narrow."""
    numbers: set[int] = set()
    for earlier in breakage.earlier[:_MOST_EARLIER]:
        if earlier.good is None or earlier.first_bad - earlier.good > _WIDEST_EARLIER:
            continue
        commits = await read_commits_between(tx, branch, earlier.good, earlier.first_bad, _WIDEST_EARLIER)
        numbers |= {commit.number for commit in commits if commit.number is not None}
    return frozenset(numbers)


@dataclass(frozen=True, slots=True)
class AlikeFailures:
    """Recorded failures with the failure of a breakage, of backends that the reader may see, newest first."""

    rows: tuple[Row, ...]

    def on_base(self) -> list[tuple[str, str, str]]:
        """The jobs that failed alike on pushes."""
        pushes = (row for row in self.rows if row["kind"] == ResultKind.PUSH.value)
        return list(dict.fromkeys((row["downstream"], row["workflow"], row["job_name"]) for row in pushes))

    def on_pulls(self, breakage: BreakageRange) -> list[Row]:
        """Those on pull requests that neither chance nor the base of that time explains."""
        return [
            row
            for row in self.rows
            if row["kind"] == ResultKind.PULLS.value and not _is_explained(row, breakage)
        ]

    def find_failed_on(
        self, job: RedJob, breakage: BreakageRange, numbers: Iterable[int], visible: VisibleBackends
    ) -> dict[int, str | None]:
        """The pull requests among `numbers` that had the failure: None where the job itself had it, else the other job."""
        chosen, failed_on = set(numbers), dict[int, str | None]()
        for row in self.on_pulls(breakage):
            number = row["number"]
            # A message may name a pull request that was not merged.
            if number not in chosen or row["is_open"] or failed_on.get(number, "") is None:
                continue
            is_same = (row["downstream"], row["workflow"], row["job_name"]) == job.key
            failed_on[number] = (
                None if is_same else f"{visible.full_name(row['downstream'])}: {row['job_name']}"
            )
        return failed_on

    def find_failed_at(self, breakage: BreakageRange, numbers: Iterable[int]) -> int | None:
        """The oldest commit that several unrelated pull requests which fail alike were built on or after."""
        inside = set(numbers)
        oldest: dict[int, int] = {}
        for row in self.on_pulls(breakage):
            number, position = row["number"], row["position"]
            if position is None or not row["built_on_exact"] or number in inside:
                continue
            if breakage.good is None or position < breakage.good.position:
                continue
            if not inside.isdisjoint(json.loads(row["stacked_on"] or "[]")):
                continue
            oldest[number] = min(position, oldest.get(number, position))
        places = sorted(oldest.values())
        return places[_ENOUGH_PULLS - 1] if len(places) >= _ENOUGH_PULLS else None


def _is_explained(row: Row, breakage: BreakageRange) -> bool:
    if row["ended"] != FailedAs.FAILURE.value or row["passed_at"] is not None:
        return True
    if row["verdict"] in (VerdictKind.FLAKY.value, VerdictKind.INFRASTRUCTURE.value):
        return True
    if row["position"] is None:
        return bool(row["verdict"] == VerdictKind.PRE_EXISTING.value)
    return any(earlier.explains(row["position"]) for earlier in breakage.earlier)


async def read_alike(
    tx: Tx,
    job: RedJob,
    breakage: BreakageRange,
    visible: VisibleBackends,
    *,
    first_failure: int,
    since: datetime,
) -> AlikeFailures:
    """`first_failure` is the id of the first recorded failure of the row: pull requests failed before it."""
    found: dict[int, Row] = {}
    place = {"ref": job.ref, "most": _MOST_ALIKE}
    for fingerprint in breakage.fingerprints[:_MOST_FINGERPRINTS]:
        if fingerprint is None:
            until = to_us(breakage.first_bad.at + _AROUND)
            rows = await tx.all(_WITHOUT_DETAILS, since=to_us(since), until=until, **place, **job.names)
        else:
            mark = {"fingerprint": fingerprint, "upstream": job.upstream}
            rows = await tx.all(_WITH_FINGERPRINT, until=_AFTER_ALL, **place, **mark)
            if len(rows) == _MOST_ALIKE:
                rows += await tx.all(_WITH_FINGERPRINT, until=first_failure, **place, **mark)
        found |= {row["failure_id"]: row for row in rows if row["downstream"] in visible.reporting}
    return AlikeFailures(tuple(sorted(found.values(), key=lambda row: -row["failure_id"])))


async def read_passed_on(tx: Tx, job: RedJob, numbers: Iterable[int]) -> frozenset[int]:
    """The pull requests on whose last head the job passed."""
    listed = json.dumps(sorted(set(numbers)))
    rows = await tx.all(_PASSED, numbers=listed, **job.names) if listed != "[]" else []
    return frozenset(row["number"] for row in rows)


async def read_pulls_passed_at(
    tx: Tx, job: RedJob, breakage: BreakageRange, entry: AllowlistEntry
) -> int | None:
    """The newest commit inside the range with a pull request on top of it that passed, where heads are what is tested."""
    if breakage.good is None or entry.tests is TestedCommit.MERGE:
        return None
    row = await tx.one(
        _PULLS_PASSED_AT,
        ref=job.ref,
        since=to_us(breakage.good.at),
        until=to_us(breakage.first_bad.at + _AROUND),
        most=_MOST_PULL_RESULTS,
        good=breakage.good.position,
        bad=breakage.first_bad.position,
        **job.names,
    )
    return row["position"] if row else None


async def read_test_files(
    tx: Tx, job: RedJob, failed: Mapping[str, Any], fingerprints: Sequence[str | None]
) -> frozenset[str]:
    """The files of the tests that failed with these fingerprints; `failed` names a delivery, run and attempt."""
    row = await tx.one(_FAILED_TESTS, **failed, **job.names)
    tests = read_failed_tests(row["failed_tests"]) if row else ()
    named = [test for test in tests if test.file]
    return frozenset(
        str(test.file) for test in named if fingerprint_failure([test]).fingerprint in fingerprints
    )
