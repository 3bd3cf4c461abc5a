"""The upstream's own CI among the culprits: as evidence about the range of a downstream's job, and with culprits of its own.

Everybody may see in-tree results. Each commit is read once in a transaction, and each span has a limit of commits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from crcr.decide.culprits.commit_range import BreakageRange
from crcr.decide.culprits.merged_pulls import BaseCommit
from crcr.decide.culprits.ranking import CulpritEvidence, InTreeEvidence, rank_candidates
from crcr.decide.culprits.red_checks import RED_WITHIN, find_red_checks
from crcr.decide.in_tree.base_results import TurnedRed, find_turned_red, find_unexplained_failures
from crcr.decide.in_tree.checks import STATUSES, CheckKey
from crcr.decide.views.culprits import MOST_CANDIDATES, CulpritQuery, JobCulprits
from crcr.record.in_tree.base_results import InTreeResults
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.views.culprits.evidence import describe_range, read_commits, read_earlier_pulls

_NEWEST_COMMITS = 100
"""With in-tree checks: how far back the last pass of a check is looked for."""
_CONTEXT = 20
"""Commits before a range on which a check must not have failed to be evidence."""
_FOLLOWING = 5
_MOST_AROUND = 100
_MOST_PULLS = 50
_AFTER_ALL = 2**62

_HEADS_OF = (
    "SELECT p.number, p.head_sha, i.failed, c.position FROM pulls p"
    " JOIN in_tree_commits i ON i.sha = p.head_sha AND i.upstream = p.upstream"
    " LEFT JOIN base_commits c ON c.sha = p.merge_base AND c.upstream = p.upstream AND c.ref = :ref"
    " WHERE p.upstream = :upstream AND p.number IN {0} AND p.is_open = 0 ORDER BY p.number DESC LIMIT :most"
)
_HEADS = Statement(
    text(_HEADS_OF.format("(SELECT value FROM json_each(:numbers))")),
    on_postgresql=text(
        _HEADS_OF.format(
            "(SELECT CAST(one AS integer) FROM json_array_elements_text(CAST(:numbers AS json)) AS one)"
        )
    ),
)


@dataclass(frozen=True, slots=True)
class _PullHead:
    """The last head of a pull request that was merged, or closed by a merge bot."""

    number: int
    sha: str
    has_failures: bool
    built_on: int | None
    """The position of its merge base."""


@dataclass(frozen=True, slots=True)
class _RedCheck:
    key: CheckKey
    breakage: BreakageRange
    others: tuple[TurnedRed, ...]
    """Other checks that turned red within the same commits."""


class InTreeCulprits:
    def __init__(self, tx: Tx, upstream: str, ref: str) -> None:
        self._tx = tx
        self._branch = {"upstream": upstream, "ref": ref}
        self._results = InTreeResults(tx, upstream)
        self._heads: dict[tuple[int, ...], tuple[_PullHead, ...]] = {}
        self._commits: dict[tuple[int, int], tuple[BaseCommit, ...]] = {}

    async def read_evidence(self, breakage: BreakageRange, commits: Sequence[BaseCommit]) -> InTreeEvidence:
        """What in-tree checks show about the changes of a downstream's range."""
        if breakage.good is None:
            return InTreeEvidence()
        heads = [head for head in await self._read_heads(commits) if head.has_failures]
        width = breakage.bad.position - breakage.good.position
        checked = await self._results.read_around(
            self._branch["ref"],
            breakage.bad.position,
            before=min(width + _CONTEXT, _MOST_AROUND),
            after=_FOLLOWING,
            needs_failures=not heads,
        )
        results = await self._results.read(head.sha for head in heads)
        landed_at = _landing_places(commits)
        failed_on = {
            head.number: find_unexplained_failures(results[head.sha], checked, landed_at[head.number])
            for head in heads
        }
        return InTreeEvidence(
            turned_red=tuple(one for one in find_turned_red(checked) if _meets(one, breakage)),
            failed_on={number: names for number, names in failed_on.items() if names},
        )

    async def find_culprits(self, query: CulpritQuery, limit: int) -> list[JobCulprits]:
        """The in-tree checks that are red on the branch, by name, each with the changes that may have broken it."""
        checked = await self._results.read_up_to(
            self._branch["ref"], _AFTER_ALL, _NEWEST_COMMITS, failed_within=RED_WITHIN
        )
        turned_red = find_turned_red(checked)
        red = {
            key: breakage for key, breakage in find_red_checks(checked).items() if query.job in (None, key[1])
        }
        found = []
        for key, breakage in list(red.items())[:limit]:
            others = tuple(one for one in turned_red if one.key != key and _meets(one, breakage))
            found.append(await self._name_culprits(query, _RedCheck(key, breakage, others)))
        return found

    async def _name_culprits(self, query: CulpritQuery, check: _RedCheck) -> JobCulprits:
        breakage = check.breakage
        commits = await self._read_commits(breakage)
        evidence = CulpritEvidence()
        if breakage.good is not None:
            # A check without a known pass fails on the pull requests too, and would blame all of them.
            evidence = await self._read_own_evidence(check, commits)
        return JobCulprits(
            backend=query.upstream,
            workflow=_describe_app(check.key),
            job=check.key[1],
            range=describe_range(breakage, commits),
            candidates=rank_candidates(breakage, commits, evidence)[:MOST_CANDIDATES],
            since=breakage.first_bad.at,
        )

    async def _read_own_evidence(self, check: _RedCheck, commits: Sequence[BaseCommit]) -> CulpritEvidence:
        key, breakage = check.key, check.breakage
        heads = await self._read_heads(commits)
        results = await self._results.read(head.sha for head in heads)
        failed = [head for head in heads if results[head.sha].get(key) is False]
        return CulpritEvidence(
            failed_on={head.number: None for head in failed if not _is_explained(head, breakage)},
            passed_on=frozenset(head.number for head in heads if results[head.sha].get(key)),
            came_with=await read_earlier_pulls(self._tx, self._branch, breakage),
            in_tree=InTreeEvidence(turned_red=check.others),
        )

    async def _read_commits(self, breakage: BreakageRange) -> tuple[BaseCommit, ...]:
        """Checks that turned red together have the same commits."""
        span = breakage.good.position if breakage.good is not None else -1, breakage.bad.position
        if span not in self._commits:
            self._commits[span] = await read_commits(self._tx, self._branch, breakage)
        return self._commits[span]

    async def _read_heads(self, commits: Iterable[BaseCommit]) -> tuple[_PullHead, ...]:
        numbers = tuple(sorted({commit.number for commit in commits if commit.number is not None}))
        if numbers and numbers not in self._heads:
            limit = {"most": _MOST_PULLS}
            rows = await self._tx.all(_HEADS, numbers=json.dumps(numbers), **self._branch, **limit)
            self._heads[numbers] = tuple(
                _PullHead(row["number"], row["head_sha"], bool(row["failed"]), row["position"])
                for row in rows
            )
        return self._heads.get(numbers, ())


def _describe_app(key: CheckKey) -> str:
    """In place of a workflow: check runs of the same name by two Apps are two checks."""
    return "commit status" if key[0] == STATUSES else f"check run of App {key[0]}"


def _landing_places(commits: Iterable[BaseCommit]) -> Mapping[int, int]:
    """The first commit of each pull request in the range."""
    places: dict[int, int] = {}
    for commit in commits:
        if commit.number is not None:
            places.setdefault(commit.number, commit.position)
    return places


def _meets(one: TurnedRed, breakage: BreakageRange) -> bool:
    """Whether a change of the range may have turned the check red."""
    begins = breakage.good.position if breakage.good is not None else -1
    return one.bad > begins and one.good < breakage.bad.position


def _is_explained(head: _PullHead, breakage: BreakageRange) -> bool:
    """Whether chance, or a breakage of that time, explains that the check failed on a pull request."""
    if breakage.chance:
        return True
    if head.built_on is None:
        return bool(breakage.earlier)
    return any(earlier.explains(head.built_on) for earlier in breakage.earlier)
