"""Bisections as recorded, newest first, and one with its commits and runs; those of backends that the reader may not see are left out."""

import json
from collections.abc import Collection, Sequence

from sqlalchemy import text

from crcr.decide.bisection.request import RangeCommit
from crcr.decide.bisection.search import (
    BisectionOutcome,
    CommitFinding,
    RunResult,
    SearchLimits,
    SearchRun,
    judge_commits,
)
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import (
    BisectionCommit,
    BisectionDetail,
    BisectionPage,
    BisectionQuery,
    BisectionRun,
    BisectionState,
    BisectionView,
    CulpritBisection,
)
from crcr.errors import NotFound
from crcr.record.bisection.bisections import read_range_commits
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_NEWEST = 2**62
_MOST_FOUND = 20
"""Bisections that found the same commit."""
# A range has up to 501 commits, and a list needs a few of them: they are chosen by the database. A page is searched for with the
# columns that its filters need, without any range.
_PLACED = "SELECT b.bisection_id, b.downstream, b.job_name, b.state FROM bisections b"
_RECENT = Statement(
    text(
        f"{_PLACED} WHERE b.upstream = :upstream AND b.bisection_id < :before"
        " ORDER BY b.bisection_id DESC LIMIT :most"
    )
)
_OF_BACKEND = Statement(
    text(
        f"{_PLACED} WHERE b.upstream = :upstream AND b.downstream = :downstream AND b.bisection_id < :before"
        " ORDER BY b.bisection_id DESC LIMIT :most"
    )
)
_COLUMNS = (
    "SELECT b.bisection_id, b.upstream, b.downstream, b.workflow, b.job_name, b.ref, b.flake_rate, b.most_runs, b.who,"
    " b.created_at, b.ends_at, b.state, b.outcome, b.reason, b.left_good, b.left_bad, b.culprit, b.finished_at,"
    " (SELECT count(*) FROM bisection_runs r WHERE r.bisection_id = b.bisection_id AND r.upstream = b.upstream) AS runs,"
)
_IN_SQLITE = (
    f"{_COLUMNS} json_array_length(b.commits) AS range_commits, json_extract(b.commits, '$[0][0]') AS good,"  # noqa: S608  our own text
    " json_extract(b.commits, '$[#-1][0]') AS bad,"
    " json_extract(b.commits, '$[' || b.left_good || '][0]') AS left_good_sha,"
    " json_extract(b.commits, '$[' || b.left_bad || ']') AS left_bad_commit"
    " FROM bisections b WHERE b.bisection_id IN (SELECT value FROM json_each(:ids)) AND b.upstream = :upstream"
)
# Without `OFFSET 0` PostgreSQL would parse the range for each column.
_IN_POSTGRESQL = (
    f"{_COLUMNS} jsonb_array_length(b.range) AS range_commits, b.range -> 0 ->> 0 AS good, b.range -> -1 ->> 0 AS bad,"  # noqa: S608  our own text
    " b.range -> b.left_good ->> 0 AS left_good_sha, CAST(b.range -> b.left_bad AS text) AS left_bad_commit"
    " FROM (SELECT x.*, CAST(x.commits AS jsonb) AS range FROM bisections x"
    " WHERE x.bisection_id IN (SELECT CAST(json_array_elements_text(CAST(:ids AS json)) AS bigint))"
    " AND x.upstream = :upstream OFFSET 0) AS b"
)
_BY_IDS = Statement(text(_IN_SQLITE), on_postgresql=text(_IN_POSTGRESQL))
_COMMITS = Statement(
    text("SELECT commits FROM bisections WHERE bisection_id = :bisection_id AND upstream = :upstream")
)
_FOUND = Statement(
    text(
        "SELECT bisection_id, downstream, job_name FROM bisections WHERE culprit = :culprit AND upstream = :upstream"
        " AND culprit IS NOT NULL ORDER BY bisection_id LIMIT :most"
    )
)
_RUNS = Statement(
    text(
        "SELECT number, delivery, position, result, sample, url, created_at, finished_at FROM bisection_runs"
        " WHERE bisection_id = :bisection_id AND upstream = :upstream ORDER BY number"
    )
)


async def bisection_page(tx: Tx, query: BisectionQuery, visible: VisibleBackends) -> BisectionPage:
    if query.backend is not None:
        visible.entry(query.backend)

    async def read(after: Key, most: int) -> list[Row]:
        place = {"upstream": query.upstream.key, "before": after[0], "most": most}
        if query.backend is None:
            return await tx.all(_RECENT, **place)
        return await tx.all(_OF_BACKEND, downstream=query.backend.key, **place)

    def keep(row: Row) -> bool:
        is_visible = row["downstream"] in visible.reporting
        return is_visible and query.job in (None, row["job_name"]) and query.state in (None, row["state"])

    rows, more = await read_matching(
        read,
        _read_cursor(query),
        query.limit,
        make_key=lambda row: (row["bisection_id"],),
        keep=keep,
    )
    views = await bisections_by_id(tx, query.upstream, [row["bisection_id"] for row in rows], visible)
    return BisectionPage(tuple(views[row["bisection_id"]] for row in rows), more, await newest_change(tx))


async def bisection_detail(
    tx: Tx, upstream: RepoName, bisection_id: int, visible: VisibleBackends
) -> BisectionDetail:
    key = {"bisection_id": bisection_id, "upstream": upstream.key}
    row = await tx.one(_BY_IDS, ids=json.dumps([bisection_id]), upstream=upstream.key)
    if row is None or row["downstream"] not in visible.reporting:
        raise NotFound(f"there is no bisection {bisection_id}")
    runs = await tx.all(_RUNS, **key)
    stored = await tx.one(_COMMITS, **key)
    commits = read_range_commits(stored["commits"] if stored else "[]")
    return BisectionDetail(
        bisection=_view(row, visible),
        commits=_judge(row, commits, runs),
        runs=tuple(_run(run, commits) for run in runs),
        change=await newest_change(tx),
    )


async def bisections_by_id(
    tx: Tx, upstream: RepoName, ids: Collection[int], visible: VisibleBackends
) -> dict[int, BisectionView]:
    """Those of the bisections that the reader may see."""
    rows = await tx.all(_BY_IDS, ids=json.dumps(sorted(ids)), upstream=upstream.key) if ids else []
    return {
        row["bisection_id"]: _view(row, visible) for row in rows if row["downstream"] in visible.reporting
    }


async def read_bisections_that_found(
    tx: Tx, upstream: RepoName, sha: str, visible: VisibleBackends
) -> tuple[CulpritBisection, ...]:
    """The bisections that found this commit to be the one that broke a job."""
    rows = await tx.all(_FOUND, culprit=sha, upstream=upstream.key, most=_MOST_FOUND)
    return tuple(
        CulpritBisection(
            id=row["bisection_id"], backend=visible.reporting[row["downstream"]].name, job=row["job_name"]
        )
        for row in rows
        if row["downstream"] in visible.reporting
    )


def _read_cursor(query: BisectionQuery) -> Key:
    match query.after:
        case None:
            return (_NEWEST,)
        case (int() as number,):
            return (number,)
    raise bad_cursor()


def _judge(row: Row, commits: Sequence[RangeCommit], runs: Sequence[Row]) -> tuple[BisectionCommit, ...]:
    limits = SearchLimits(commits=len(commits) - 1, most_runs=row["most_runs"], flake_rate=row["flake_rate"])
    searched = [
        SearchRun(run["position"], RunResult(run["result"]) if run["result"] else None) for run in runs
    ]
    findings = judge_commits(limits, searched)
    return tuple(
        _commit(commit, findings.get(position), is_candidate=row["left_good"] < position <= row["left_bad"])
        for position, commit in enumerate(commits)
    )


def _commit(commit: RangeCommit, finding: CommitFinding | None, *, is_candidate: bool) -> BisectionCommit:
    return BisectionCommit(
        sha=commit.sha,
        number=commit.number,
        title=commit.title,
        finding=finding,
        is_candidate=is_candidate,
    )


def _run(row: Row, commits: Sequence[RangeCommit]) -> BisectionRun:
    return BisectionRun(
        number=row["number"],
        sha=commits[row["position"]].sha,
        delivery=row["delivery"],
        result=RunResult(row["result"]) if row["result"] else None,
        sample=row["sample"],
        url=row["url"],
        sent_at=from_us(row["created_at"]),
        finished_at=from_us_or_none(row["finished_at"]),
    )


def _view(row: Row, visible: VisibleBackends) -> BisectionView:
    left_bad = RangeCommit(*json.loads(row["left_bad_commit"]))
    culprit = left_bad if row["culprit"] is not None else None
    return BisectionView(
        id=row["bisection_id"],
        backend=visible.reporting[row["downstream"]].name,
        workflow=row["workflow"],
        job=row["job_name"],
        branch=row["ref"],
        state=BisectionState(row["state"]),
        outcome=BisectionOutcome(row["outcome"]) if row["outcome"] else None,
        reason=row["reason"],
        good=row["good"],
        bad=row["bad"],
        commits=row["range_commits"] - 1,
        left=row["left_bad"] - row["left_good"],
        left_good=row["left_good_sha"],
        left_bad=left_bad.sha,
        culprit=_commit(culprit, CommitFinding.BAD, is_candidate=True) if culprit else None,
        runs=row["runs"],
        most_runs=row["most_runs"],
        flake_rate=row["flake_rate"],
        who=row["who"],
        created_at=from_us(row["created_at"]),
        ends_at=from_us(row["ends_at"]),
        finished_at=from_us_or_none(row["finished_at"]),
    )
