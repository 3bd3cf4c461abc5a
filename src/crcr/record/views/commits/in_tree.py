"""Reads the upstream's own CI for pages: the counts of a commit with its failing checks, and the trend of the base branch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import text

from crcr.decide.culprits.merged_pulls import group_by_pull
from crcr.decide.in_tree.base_results import CheckedCommit, OnBase, compare_with_base, red_since
from crcr.decide.in_tree.checks import CheckKey, Outcome
from crcr.decide.model import RepoName
from crcr.decide.views.in_tree import FailingCheck, InTreeCommit, InTreeTrend, InTreeView, RedSince
from crcr.record.in_tree.base_results import InTreeResults
from crcr.record.in_tree.upkeep import read_checks
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.culprits.evidence import read_commits_between

_MOST_FAILING = 500
_MOST_COMMITS = 20
_COMMITS_COMPARED = 5
"""With in-tree checks: a check that runs now and then has its last result on one of them."""
_COMMITS_BEFORE = 60
"""How far back the last pass of a failing check is looked for."""
_MOST_SPANS = 20
_WIDEST_SPAN = 30
_AFTER_ALL = 2**62
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


@dataclass(frozen=True, slots=True)
class ComparedBase:
    """The branch that a commit's failing checks are compared with."""

    ref: str
    built_on: str | None
    """The commit of the branch that the compared one is built on, where it is known."""
    with_newest: bool
    """Whether its newest commits count too: a pull request may be tested as merged into them."""


async def read_in_tree(
    tx: Tx, upstream: RepoName, sha: str, base: ComparedBase | None = None
) -> InTreeView | None:
    """The in-tree results of a commit; None where no check was recorded.

    Its failing checks are compared with those of the base, or of the commits before it if it is one of the default branch.
    """
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
        comparison = await _compare(tx, upstream, sha, base)
        failing = [
            FailingCheck(
                check.name,
                check.url,
                check.conclusion or "",
                on_base=comparison.on_base(check.key),
                since=await comparison.since(check.key),
            )
            for check in failed[:_MOST_FAILING]
        ]
    return InTreeView(row["passed"], row["failed"], row["running"], tuple(failing))


async def _compare(tx: Tx, upstream: RepoName, sha: str, base: ComparedBase | None) -> "_Comparison":
    results = InTreeResults(tx, upstream.key)
    branch = await _read_branch(tx, upstream)
    position = None if branch is None else await results.find_position(branch, sha)
    if branch is not None and position is not None:
        course = await results.read_up_to(branch, position, _COMMITS_BEFORE + 1)
        before = [commit for commit in course if commit.position < position]
        place = {"upstream": upstream.key, "ref": branch}
        return _Comparison(tx, (before[: -_COMMITS_COMPARED - 1 : -1],), course, place)
    return _Comparison(tx, await _read_base(results, base) if base is not None else ())


async def _read_base(results: InTreeResults, base: ComparedBase) -> tuple[Sequence[CheckedCommit], ...]:
    """The commits that the compared one is built on, and the newest ones where they count, newest first."""
    position = None if base.built_on is None else await results.find_position(base.ref, base.built_on)
    places = [] if position is None else [position]
    places += [_AFTER_ALL] if base.with_newest else []
    spans = [await results.read_up_to(base.ref, place, _COMMITS_COMPARED) for place in places]
    return tuple(span[::-1] for span in spans)


@dataclass(frozen=True, slots=True)
class _Comparison:
    tx: Tx
    bases: tuple[Sequence[CheckedCommit], ...]
    course: Sequence[CheckedCommit] = ()
    """The commits of the branch up to the compared one, oldest first; empty for a commit that is not on it."""
    branch: Mapping[str, str] = field(default_factory=dict)
    numbers: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def on_base(self, key: CheckKey) -> OnBase | None:
        """Failed if it fails on any of the bases."""
        found = {compare_with_base(key, commits) for commits in self.bases}
        return next((state for state in OnBase if state in found), None)

    async def since(self, key: CheckKey) -> RedSince | None:
        if not self.course or self.course[-1].results.get(key) is not False:
            return None
        first, good = red_since(key, self.course)
        if good is None:
            return None
        span = (good.position, first.position)
        if span not in self.numbers and len(self.numbers) < _MOST_SPANS:
            self.numbers[span] = await self._find_only_pull(*span)
        return RedSince(first.sha, self.numbers.get(span))

    async def _find_only_pull(self, good: int, bad: int) -> int | None:
        """The pull request between two commits, where it is the only change."""
        if bad - good > _WIDEST_SPAN:
            return None
        commits = await read_commits_between(self.tx, self.branch, good, bad, _WIDEST_SPAN)
        changes = group_by_pull(commits)
        return changes[0][-1].number if len(changes) == 1 else None


async def read_in_tree_trend(tx: Tx, upstream: RepoName) -> InTreeTrend | None:
    """The newest commits of the default branch that have in-tree checks; None where there are none."""
    branch = await _read_branch(tx, upstream)
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


async def _read_branch(tx: Tx, upstream: RepoName) -> str | None:
    row = await tx.one(_BRANCH, upstream=upstream.key)
    return row["default_branch"] if row else None
