"""Reads the upstream's own CI for pages: the counts of a commit with its failing checks, and the trend of the base branch."""

from sqlalchemy import text

from crcr.decide.in_tree.checks import Outcome
from crcr.decide.model import RepoName
from crcr.decide.views.in_tree import FailingCheck, InTreeCommit, InTreeTrend, InTreeView
from crcr.record.in_tree.upkeep import read_checks
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

_MOST_FAILING = 500
_MOST_COMMITS = 20
_COMMITS_READ = 200
"""Of the base branch: the checks of a push are those of its last commit."""

_COMMIT = Statement(
    text(
        "SELECT passed, failed, running, packed FROM in_tree_commits WHERE sha = :sha AND upstream = :upstream"
    )
)
_BRANCH = Statement(text("SELECT default_branch FROM upstreams WHERE upstream = :upstream"))
_TREND = Statement(
    text(
        "SELECT b.sha, b.pushed_at, c.passed, c.failed, c.running FROM (SELECT sha, upstream, position, pushed_at"
        " FROM base_commits WHERE upstream = :upstream AND ref = :ref ORDER BY position DESC LIMIT :most_read) AS b"
        " JOIN in_tree_commits c ON c.sha = b.sha AND c.upstream = b.upstream ORDER BY b.position DESC LIMIT :most"
    )
)


async def read_in_tree(tx: Tx, upstream: RepoName, sha: str) -> InTreeView | None:
    """The in-tree results of a commit; None where no check was recorded."""
    commit = {"sha": sha, "upstream": upstream.key}
    row = await tx.one(_COMMIT, **commit)
    if row is None:
        return None
    failing: list[FailingCheck] = []
    if row["failed"]:
        checks = await read_checks(tx, packed=row["packed"], **commit)
        failed = sorted(
            (check for check in checks.values() if check.outcome is Outcome.FAILED),
            key=lambda check: (check.name, check.app_id),
        )
        failing = [FailingCheck(check.name, check.url, check.conclusion or "") for check in failed]
    return InTreeView(row["passed"], row["failed"], row["running"], tuple(failing[:_MOST_FAILING]))


async def read_in_tree_trend(tx: Tx, upstream: RepoName) -> InTreeTrend | None:
    """The newest commits of the default branch that have in-tree checks; None where there are none."""
    known = await tx.one(_BRANCH, upstream=upstream.key)
    branch = known["default_branch"] if known else None
    if branch is None:
        return None
    limits = {"most_read": _COMMITS_READ, "most": _MOST_COMMITS}
    rows = await tx.all(_TREND, upstream=upstream.key, ref=branch, **limits)
    commits = [
        InTreeCommit(
            sha=row["sha"],
            pushed_at=from_us(row["pushed_at"]),
            passed=row["passed"],
            failed=row["failed"],
            running=row["running"],
        )
        for row in reversed(rows)
    ]
    return InTreeTrend(branch, tuple(commits)) if commits else None
