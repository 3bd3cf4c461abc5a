"""The facts of what needs attention: jobs that are red on the base branch, silent backends, blocked pull requests.

The front page reads them on each rendering, so each statement begins at the few rows that can matter: the failures of the
newest pushes, the heads of open pull requests, the dispatches since a report. Jobs that did not run on the newest pushes are
left to the list of failing jobs, which reads all of the last 30 days.
"""

# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.levels.standings import SUMMARIES, Demotion
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import ANSWER_WITHIN, SILENT_WITHIN, UNANSWERED_IS_SILENT
from crcr.decide.views.attention import (
    BLOCKED_RECENTLY,
    MOST_PULLS,
    AttentionFacts,
    BlockedPull,
    DemotedBackend,
    RedBaseJob,
    TroubledBackend,
    silent_since,
)
from crcr.decide.views.in_tree import InTreeTrend
from crcr.record.levels.demotions import STANDINGS
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.backends.backend_reader import AWAITED, IS_UPSTREAM_EVENT
from crcr.record.views.visibility import VisibleBackends

_COMMITS_READ = 100
"""Of the base branch: the newest ones may have no results yet."""
_PUSHES_READ = 6
"""The newest ones with a failure: a job that is red failed on one of them, unless it runs now and then only."""
_HISTORY = timedelta(days=90)
_BEFORE_PUSH_US = 24 * 3_600_000_000
"""A merge group is tested before its commit is pushed, by less than this."""
_MOST_JOBS = 200
_MOST_SILENT = 20
"""Read one by one, the highest levels first."""

_BRANCH = Statement(text("SELECT default_branch FROM upstreams WHERE upstream = :upstream"))
_OF_JOB = (
    "{0}.upstream = :upstream AND {0}.downstream = r.downstream AND {0}.workflow = r.workflow"
    " AND {0}.job_name = r.job_name"
)
_ON_BASE = " JOIN base_commits c ON c.sha = {0}.head_sha AND c.upstream = {0}.upstream AND c.ref = :ref"
_OF_PUSH = "f.kind <> 'pull_request' AND f.kind = 'push'"
_IS_RESULT = (
    "f.ended <> 'cancelled' AND NOT (f.ended = 'failure' AND coalesce(f.verdict, '') = 'infrastructure')"
)
"""As in the list of failing jobs: a cancelled job has no result, and sick machines say nothing about the code."""
_COUNTS = f"f.passed_at IS NULL AND {_IS_RESULT}"
_SINCE_PASS = (
    f"FROM failures f{_ON_BASE.format('f')} WHERE {_OF_JOB.format('f')} AND {_OF_PUSH} AND f.passed_at IS NULL"
    " AND f.at >= :since AND f.at >= r.passed_at - :before_push AND c.position > r.passed"
    # After the commit: an index has all that is compared before, and a failure's row is large.
    f" AND CASE WHEN c.position > r.passed THEN {_IS_RESULT} END"
)
_RED_JOBS = Statement(
    text(
        "WITH pushes AS MATERIALIZED (SELECT d.guid, b.position FROM (SELECT sha, upstream, position FROM base_commits"
        " WHERE upstream = :upstream AND ref = :ref ORDER BY position DESC LIMIT :commits) AS b"
        " CROSS JOIN deliveries d WHERE d.head_sha = b.sha AND d.upstream = b.upstream AND d.head_sha IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM failures f WHERE f.delivery = d.guid AND f.upstream = b.upstream AND f.kind = 'push')"
        " ORDER BY b.position DESC LIMIT :pushes),"
        " red AS MATERIALIZED (SELECT f.downstream, f.workflow, f.job_name, max(p.position) AS place,"
        " min(CASE WHEN f.verdict = 'flaky' THEN 1 ELSE 0 END) AS flaky FROM pushes p CROSS JOIN failures f"
        # With a plain `kind` SQLite would read all failures of the base by the index of these.
        f" WHERE f.delivery = p.guid AND f.upstream = :upstream AND f.kind || '' = 'push' AND {_COUNTS}"
        " GROUP BY f.downstream, f.workflow, f.job_name),"
        f" passes AS MATERIALIZED (SELECT r.*, coalesce((SELECT c.position FROM jobs j{_ON_BASE.format('j')}"
        f" WHERE {_OF_JOB.format('j')} AND j.in_progress_at >= :since AND j.event <> 'pull_request'"
        " AND j.event IN ('push', 'merge_group') AND j.ended_as IS NOT NULL AND j.ended_as = 'success' AND j.imported = 0"
        " ORDER BY j.in_progress_at DESC LIMIT 1), -1) AS passed FROM red r),"
        " still_red AS MATERIALIZED (SELECT p.*, coalesce((SELECT g.pushed_at FROM base_commits g"
        " WHERE g.upstream = :upstream AND g.ref = :ref AND g.position = p.passed LIMIT 1), 0) AS passed_at"
        " FROM passes p WHERE p.passed < p.place)"
        f" SELECT r.downstream, r.job_name, r.flaky, (SELECT f.at {_SINCE_PASS} ORDER BY f.at LIMIT 1) AS at,"
        f" EXISTS (SELECT 1 {_SINCE_PASS} AND c.position <> r.place) AS repeated"
        " FROM still_red r ORDER BY r.downstream, r.workflow, r.job_name LIMIT :most"
    )
)
_OPEN_HEADS = (
    "FROM pulls p JOIN gates g ON g.head_sha = p.head_sha AND g.upstream = p.upstream"
    " WHERE p.upstream || '' = :upstream AND p.is_open = 1 AND p.head_sha >= '' AND g.state = 'failed'"
)
# The heads are walked once: the window counts all that are blocked, whatever the order cuts off.
_BLOCKED = Statement(
    text(
        "SELECT p.number, p.title, p.author, p.head_sha, coalesce(g.decided_at, g.judged_at) AS blocked_at, p.updated_at,"
        f" count(*) OVER () AS total {_OPEN_HEADS}"
        " ORDER BY CASE WHEN p.updated_at >= :lately AND p.draft = 0 THEN 0 ELSE 1 END,"
        " coalesce(g.decided_at, g.judged_at), p.number LIMIT :most"
    )
)
_FAILED_CHECKS = Statement(
    text(
        "SELECT c.name, c.downstream, c.conclusion, c.title FROM checks c WHERE c.head_sha = :head_sha"
        " AND c.upstream = :upstream AND c.tier = 'backend' ORDER BY c.name, c.round DESC"
    )
)
_LAST_REPORT = (
    "coalesce((SELECT j.in_progress_at FROM jobs j WHERE j.upstream = :upstream AND j.downstream = :downstream"
    f" AND {IS_UPSTREAM_EVENT} ORDER BY j.in_progress_at DESC LIMIT 1), 0)"
)
_UNANSWERED = Statement(
    text(
        f"SELECT d.sent_at, {_LAST_REPORT} AS reported_at FROM dispatches d WHERE d.upstream = :upstream"
        f" AND d.downstream = :downstream AND d.created_at > {_LAST_REPORT} AND d.created_at > :since AND {AWAITED}"
        " ORDER BY d.created_at LIMIT :most"
    )
)


@dataclass(frozen=True, slots=True)
class TroubleMarks:
    """What the table of backends knows already."""

    silent: Iterable[str]
    suspended: Mapping[str, datetime]
    in_tree: InTreeTrend | None
    demotions: Mapping[str, Demotion] = field(default_factory=dict)


async def read_attention_facts(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, marks: TroubleMarks, now: datetime
) -> AttentionFacts:
    branch_row = await tx.one(_BRANCH, upstream=upstream.key)
    branch = branch_row["default_branch"] if branch_row else None
    blocked, total = await _read_blocked(tx, upstream, visible, now)
    return AttentionFacts(
        branch=branch,
        red_jobs=await _read_red_jobs(tx, upstream, branch, visible, now) if branch else (),
        silent=await _read_silent(tx, upstream, marks.silent, visible, now),
        suspended=[
            (_troubled(visible.public[key]), at)
            for key, at in marks.suspended.items()
            if key in visible.public
        ],
        demoted=await _read_demoted(tx, upstream, marks.demotions, visible),
        blocked=blocked,
        blocked_pulls=total,
        in_tree=marks.in_tree,
    )


def _troubled(entry: AllowlistEntry) -> TroubledBackend:
    return TroubledBackend(entry.name, entry.level, entry.oncalls)


async def _read_red_jobs(
    tx: Tx, upstream: RepoName, branch: str, visible: VisibleBackends, now: datetime
) -> list[RedBaseJob]:
    limits = {"commits": _COMMITS_READ, "pushes": _PUSHES_READ, "most": _MOST_JOBS}
    times = {"since": to_us(now - _HISTORY), "before_push": _BEFORE_PUSH_US}
    rows = await tx.all(_RED_JOBS, upstream=upstream.key, ref=branch, **limits, **times)
    return [
        RedBaseJob(
            backend=_troubled(visible.reporting[row["downstream"]]),
            job=row["job_name"],
            since=from_us(row["at"]),
            repeated=bool(row["repeated"]),
            flaky=bool(row["flaky"]),
        )
        for row in rows
        if _is_told(row, visible)
    ]


def _is_told(row: Row, visible: VisibleBackends) -> bool:
    """Whether the reader may see the job; a probe fails on purpose."""
    entry = visible.reporting.get(row["downstream"])
    return entry is not None and not entry.expect and row["at"] is not None


async def _read_silent(
    tx: Tx, upstream: RepoName, silent: Iterable[str], visible: VisibleBackends, now: datetime
) -> list[tuple[TroubledBackend, datetime]]:
    entries = sorted(
        (visible.public[key] for key in silent if key in visible.public), key=lambda entry: -entry.level.value
    )
    times = {"since": to_us(now - SILENT_WITHIN), "before": to_us(now - ANSWER_WITHIN)}
    found = []
    for entry in entries[:_MOST_SILENT]:
        key = {"upstream": upstream.key, "downstream": entry.name.key}
        rows = await tx.all(_UNANSWERED, most=UNANSWERED_IS_SILENT, **key, **times)
        if rows:
            since = silent_since(
                [from_us(row["sent_at"]) for row in rows],
                reported=bool(rows[0]["reported_at"]),
                after=UNANSWERED_IS_SILENT,
                within=ANSWER_WITHIN,
            )
            found.append((_troubled(entry), since))
    return found


async def _read_demoted(
    tx: Tx, upstream: RepoName, demotions: Mapping[str, Demotion], visible: VisibleBackends
) -> list[DemotedBackend]:
    if not demotions:
        return []
    return [
        DemotedBackend(
            backend=_troubled(visible.public[row["downstream"]]),
            since=from_us(row["changed_at"] or row["since_at"]),
            text=f"{SUMMARIES[demotions[row['downstream']]]}; {row['reason']}",
        )
        for row in await tx.all(STANDINGS, upstream=upstream.key)
        if row["downstream"] in demotions and row["downstream"] in visible.public
    ]


async def _read_blocked(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, now: datetime
) -> tuple[list[BlockedPull], int]:
    """The pull requests that have been blocked longest, and the number of all that are."""
    lately = to_us(now - BLOCKED_RECENTLY)
    rows = await tx.all(_BLOCKED, upstream=upstream.key, lately=lately, most=MOST_PULLS)
    blocked = [
        await _read_blocked_pull(tx, upstream, visible, row) for row in rows if row["updated_at"] >= lately
    ]
    return blocked, rows[0]["total"] if rows else 0


async def _read_blocked_pull(tx: Tx, upstream: RepoName, visible: VisibleBackends, row: Row) -> BlockedPull:
    """The gate's own title may name a hidden backend, so the reason is made of the checks of visible ones."""
    newest: dict[str, Row] = {}
    for check in await tx.all(_FAILED_CHECKS, head_sha=row["head_sha"], upstream=upstream.key):
        newest.setdefault(check["name"], check)
    failed = [check for check in newest.values() if check["conclusion"] == "failure"]
    gating = [
        (entry, check["title"])
        for check in failed
        if (entry := visible.reporting.get(check["downstream"] or "")) and entry.level is Level.L4
    ]
    reason = f"{gating[0][0].name}: {gating[0][1]}" if gating else None
    more = f" and {len(gating) - 1:,} more" if len(gating) > 1 else ""
    return BlockedPull(
        number=row["number"],
        title=row["title"],
        author=row["author"],
        since=from_us(row["blocked_at"]),
        reason=f"{reason}{more}" if reason else None,
        oncalls=tuple(dict.fromkeys(person for entry, _ in gating for person in entry.oncalls)),
    )
