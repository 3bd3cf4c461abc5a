"""The compatibility matrix: branches searched for green commits, newest first, and the groups of columns of its page.

A branch is read in chunks, from the newest commit down, until older ones cannot change the answer.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.compatibility import (
    MOST_SEARCHED,
    CompatBackend,
    CompatCell,
    CompatColumns,
    CompatCommit,
    CompatQuery,
    CompatState,
    CompatView,
    GreenCommit,
    GreenMatch,
    GroupKind,
    LatestGreen,
    accept_commits,
    age_of,
    choose_backends,
    find_common,
    lowest_level,
)
from crcr.decide.github.commit_origin import NIGHTLY_BRANCH, RELEASE_BRANCHES, newest_releases
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.compatibility.commit_states import CommitStateReader, ReadCommit
from crcr.record.views.failures.failing_jobs import read_base_branch
from crcr.record.views.grids.cells import with_lists
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_FIRST_CHUNK = 16
_LARGEST_CHUNK = 256
_CELLS_AT_ONCE = 400
"""Commits by backends that one statement reads; beyond that backends are read one by one, and only where all others are green."""
_MOST_UNTESTED = 200
"""Commits that are looked at to find those of a group of columns: of a push, only the last commit is tested."""
_NIGHTS, _RELEASES, _OF_RELEASE, _TAGS = 7, 3, 3, 5
_MOST_TAGS = 1_000

_COMMITS = Statement(
    text(
        "SELECT sha, position FROM base_commits WHERE upstream = :upstream AND ref = :ref AND position <= :position"
        " AND (position < :position OR sha < :sha) ORDER BY position DESC, sha DESC LIMIT :most"
    )
)
_TESTED_AT_NIGHT = Statement(
    text(
        "SELECT b.sha, b.position FROM (SELECT sha, upstream, position FROM base_commits WHERE upstream = :upstream"
        " AND ref = :ref ORDER BY position DESC LIMIT :most_read) AS b JOIN commits c ON c.sha = b.sha"
        " AND c.upstream = b.upstream ORDER BY b.position DESC LIMIT :most"
    )
)
_DESCRIBED = with_lists(
    "SELECT c.sha, c.position, c.pushed_at, coalesce(c.title, p.title) AS title, c.number FROM base_commits c"
    " LEFT JOIN pulls p ON p.upstream = c.upstream AND p.number = c.number WHERE c.sha IN {shas} AND c.upstream = :upstream"
    " AND c.ref = :ref"
)
# Jumps from branch to branch along the order of commits.
_RELEASE_BRANCHES = Statement(
    text(
        "WITH RECURSIVE branches(ref) AS (SELECT min(ref) FROM base_commits WHERE upstream = :upstream AND ref >= :first"
        " AND ref < :beyond UNION ALL SELECT (SELECT min(b.ref) FROM base_commits b WHERE b.upstream = :upstream"
        " AND b.ref > r.ref AND b.ref < :beyond) FROM branches r WHERE r.ref IS NOT NULL)"
        " SELECT ref FROM branches WHERE ref IS NOT NULL"
    )
)
_VERSION_TAGS = Statement(
    text(
        "SELECT name, sha, object_sha, pushed_at FROM upstream_tags WHERE upstream = :upstream"
        " ORDER BY pushed_at DESC, name LIMIT :most"
    )
)


@dataclass(slots=True)
class _Branch:
    """A branch's commits, newest first, read as far as they are needed."""

    reader: CommitStateReader
    ref: str
    commits: list[ReadCommit] = field(default_factory=list)
    is_read: bool = False
    """Whether nothing follows that is searched."""

    async def chunk(self, start: int, size: int) -> Sequence[ReadCommit]:
        """So many commits from an index on, fewer at the end."""
        while len(self.commits) < start + size and not self.is_read:
            await self._read_more()
        return self.commits[start : start + size]

    async def _read_more(self) -> None:
        size = min(
            max(_FIRST_CHUNK, 2 * len(self.commits)), _LARGEST_CHUNK, MOST_SEARCHED - len(self.commits)
        )
        position, sha = (self.commits[-1].position, self.commits[-1].sha) if self.commits else (2**62, "")
        place = {"upstream": self.reader.upstream.key, "ref": self.ref}
        rows = await self.reader.tx.all(_COMMITS, position=position, sha=sha, most=size, **place)
        commits = [ReadCommit(row["sha"], row["position"], row["sha"]) for row in rows]
        self.commits += await self.reader.find_results(commits)
        self.is_read = len(rows) < size or len(self.commits) >= MOST_SEARCHED

    async def find_exact(self, backends: Sequence[str]) -> ReadCommit | None:
        """The newest commit at which all are green: each backend is read only at commits where those before it are."""
        order, start, size = list(backends), 0, _FIRST_CHUNK
        while chunk := await self.chunk(start, size):
            start, size = start + len(chunk), size * 2
            green = [commit for commit in chunk if commit.is_tested]
            greens: dict[str, int] = {}
            for index, backend in enumerate(order):
                if not green:
                    break
                rest = order[index:]
                await self.reader.read(green, rest if len(green) * len(rest) <= _CELLS_AT_ONCE else [backend])
                green = [commit for commit in green if self.reader.is_green(commit, backend)]
                greens[backend] = len(green)
            if green:
                return green[0]
            order.sort(key=lambda backend: greens.get(backend, len(chunk)))
        return None

    async def find_between(self, backends: Sequence[str]) -> ReadCommit | None:
        """The newest commit that is accepted for all: it is not newer than any backend's last green one."""
        last = await self.find_last_green(backends, needs_all=True)
        if len(last) < len(backends):
            return None
        first = start = max(last.values())
        size, found = _FIRST_CHUNK, None
        after_green = [await self._is_after_green(backend, start) for backend in backends]
        states: dict[str, list[CompatState | None]] = {backend: [] for backend in backends}
        while chunk := await self.chunk(start, size):
            start, size = start + len(chunk), size * 2
            for backend, so_far in zip(backends, await self._read_states(chunk, backends), strict=True):
                states[backend] += so_far
            common = find_common(list(states.values()), GreenMatch.BETWEEN, after_green)
            found = None if common.index is None else self.commits[first + common.index]
            if common.is_settled:
                break
        return found

    async def _is_after_green(self, backend: str, end: int) -> bool:
        """Whether, of the commits before an index, the last one that is green or failed is green."""
        while end > 0:
            start = max(0, end - _FIRST_CHUNK)
            [states] = await self._read_states(self.commits[start:end], [backend])
            for state in reversed(states):
                if state in (CompatState.GREEN, CompatState.FAILED):
                    return state is CompatState.GREEN
            end = start
        return False

    async def _read_states(
        self, commits: Sequence[ReadCommit], backends: Sequence[str]
    ) -> list[list[CompatState | None]]:
        """The states of each backend; a commit that was not tested has none."""
        await self.reader.read([commit for commit in commits if commit.is_tested], backends)
        return [
            [self.reader.get(commit, backend) if commit.is_tested else None for commit in commits]
            for backend in backends
        ]

    async def find_last_green(self, backends: Sequence[str], *, needs_all: bool = False) -> dict[str, int]:
        """The index of each backend's newest green commit; with `needs_all` the search ends at the first that has none."""
        found: dict[str, int] = {}
        await self._find_green(backends, found, 0, _FIRST_CHUNK)
        rest = [backend for backend in backends if backend not in found]
        for group in [[backend] for backend in rest] if needs_all else [rest]:
            start, size = _FIRST_CHUNK, _FIRST_CHUNK
            while await self.chunk(start, 1) and (left := [name for name in group if name not in found]):
                await self._find_green(left, found, start, size)
                start, size = start + size, size * 2
            if needs_all and group[0] not in found:
                break
        return found

    async def _find_green(
        self, backends: Sequence[str], found: dict[str, int], start: int, size: int
    ) -> None:
        chunk = await self.chunk(start, size)
        for backend, states in zip(backends, await self._read_states(chunk, backends), strict=True):
            if CompatState.GREEN in states:
                found[backend] = start + states.index(CompatState.GREEN)

    async def describe(self, shas: Iterable[str], now: datetime) -> dict[str, GreenCommit]:
        place = {"upstream": self.reader.upstream.key, "ref": self.ref}
        rows = await self.reader.tx.all(_DESCRIBED, shas=json.dumps(sorted({*shas})), **place)
        newest = self.commits[0].position if self.commits else 0
        return {
            row["sha"]: GreenCommit(
                sha=row["sha"],
                title=row["title"],
                number=row["number"],
                pushed_at=from_us(row["pushed_at"]),
                age_s=age_of(from_us(row["pushed_at"]), now),
                newer_commits=newest - row["position"],
            )
            for row in rows
        }


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a request is about: the backends, and the branch."""

    query: CompatQuery
    entries: tuple[AllowlistEntry, ...]
    reader: CommitStateReader
    branch: _Branch | None
    now: datetime

    @property
    def keys(self) -> list[str]:
        return [entry.name.key for entry in self.entries]

    async def find(self, match: GreenMatch) -> LatestGreen | None:
        branch = self.branch
        if branch is None or not self.entries:
            return None
        commit = await (
            branch.find_exact(self.keys) if match is GreenMatch.EXACT else branch.find_between(self.keys)
        )
        if commit is None:
            return None
        described = await branch.describe([commit.sha], self.now)
        return LatestGreen(
            upstream=self.query.upstream,
            branch=branch.ref,
            match=match,
            backends=tuple(entry.name for entry in self.entries),
            commit=described[commit.sha],
            between=tuple(
                entry.name for entry in self.entries if not self.reader.is_green(commit, entry.name.key)
            ),
        )


async def _choose(tx: Tx, query: CompatQuery, visible: VisibleBackends, now: datetime) -> _Chosen:
    entries = choose_backends(visible.reporting.values(), query)
    ref = query.branch or await read_base_branch(tx, query.upstream)
    reader = CommitStateReader(tx, query.upstream, now)
    return _Chosen(query, entries, reader, None if ref is None else _Branch(reader, ref), now)


async def latest_green(
    tx: Tx, query: CompatQuery, visible: VisibleBackends, now: datetime
) -> LatestGreen | None:
    """The newest commit at which every chosen backend is green, by the query's match; None where there is none."""
    return await (await _choose(tx, query, visible, now)).find(query.match)


async def compat_view(tx: Tx, query: CompatQuery, visible: VisibleBackends, now: datetime) -> CompatView:
    chosen = await _choose(tx, query, visible, now)
    branch, keys = chosen.branch, chosen.keys
    groups = await _read_groups(tx, chosen) if chosen.entries else ()
    last = await branch.find_last_green(keys) if branch else {}
    last_shas = {key: branch.commits[index].sha for key, index in last.items()} if branch else {}
    described = await branch.describe(last_shas.values(), now) if branch else {}
    is_possible = len(last) == len(keys)  # without a green commit of each there is no common one
    last_green = {key: described.get(sha) for key, sha in last_shas.items()}
    return CompatView(
        upstream=query.upstream,
        at=now,
        cursor=await newest_change(tx),
        branch=branch.ref if branch else None,
        level=lowest_level(query),
        searched=MOST_SEARCHED,
        backends=tuple(
            CompatBackend(
                name=entry.name,
                level=entry.level,
                device=entry.device,
                hardware=entry.hardware,
                last_green=last_green.get(entry.name.key),
            )
            for entry in chosen.entries
        ),
        groups=groups,
        exact=await chosen.find(GreenMatch.EXACT) if is_possible else None,
        between=await chosen.find(GreenMatch.BETWEEN) if is_possible else None,
    )


async def _read_groups(tx: Tx, chosen: _Chosen) -> tuple[CompatColumns, ...]:
    """The groups of columns that have any: the branch, nights, release branches, tags."""
    groups = []
    if chosen.branch is not None:
        groups.append(await _read_branch_group(chosen, GroupKind.BRANCH, chosen.branch, chosen.query.commits))
        groups.append(await _read_nights(tx, chosen, chosen.branch))
    if chosen.query.branch is None:
        place = {"upstream": chosen.query.upstream.key}
        ends = {"first": RELEASE_BRANCHES, "beyond": f"{RELEASE_BRANCHES[:-1]}0"}
        refs = [row["ref"] for row in await tx.all(_RELEASE_BRANCHES, **ends, **place)]
        for ref in newest_releases(refs)[:_RELEASES]:
            branch = _Branch(chosen.reader, ref)
            groups.append(await _read_branch_group(chosen, GroupKind.RELEASE, branch, _OF_RELEASE))
        groups.append(await _read_tags(tx, chosen))
    return tuple(group for group in groups if group.commits)


async def _read_branch_group(chosen: _Chosen, kind: GroupKind, branch: _Branch, most: int) -> CompatColumns:
    tested: list[ReadCommit] = []
    start = 0
    while len(tested) < most and start < _MOST_UNTESTED and (chunk := await branch.chunk(start, most)):
        start += len(chunk)
        tested += [commit for commit in chunk if commit.is_tested]
    return await _make_group(chosen, kind, branch.ref, tested[:most])


async def _read_nights(tx: Tx, chosen: _Chosen, branch: _Branch) -> CompatColumns:
    """The commits of the branch `nightly`; without one, those of the branch that nights tested."""
    nightly = _Branch(chosen.reader, NIGHTLY_BRANCH)
    if chosen.query.branch is None and await nightly.chunk(0, 1):
        return await _read_branch_group(chosen, GroupKind.NIGHTLY, nightly, _NIGHTS)
    place = {"upstream": chosen.query.upstream.key, "ref": branch.ref}
    rows = await tx.all(_TESTED_AT_NIGHT, most_read=MOST_SEARCHED, most=_NIGHTS, **place)
    commits = await chosen.reader.find_results(
        [ReadCommit(row["sha"], row["position"], row["sha"]) for row in rows]
    )
    return await _make_group(chosen, GroupKind.NIGHTLY, branch.ref, commits)


async def _read_tags(tx: Tx, chosen: _Chosen) -> CompatColumns:
    rows = await tx.all(_VERSION_TAGS, upstream=chosen.query.upstream.key, most=_MOST_TAGS)
    by_name = {row["name"]: row for row in rows}
    names = newest_releases(by_name)[:_TAGS]
    commits = await chosen.reader.find_results(
        [ReadCommit(by_name[name]["sha"], 0, f"tag {name}", tag=by_name[name]) for name in names]
    )
    return await _make_group(chosen, GroupKind.TAGS, "tags", commits)


async def _make_group(
    chosen: _Chosen, kind: GroupKind, name: str, commits: Sequence[ReadCommit]
) -> CompatColumns:
    reader, keys = chosen.reader, chosen.keys
    await reader.read(commits, keys)
    # Tags lie on no line: nothing is between two of them.
    match = GreenMatch.EXACT if kind is GroupKind.TAGS else GreenMatch.BETWEEN
    accepted = {key: accept_commits([reader.get(commit, key) for commit in commits], match) for key in keys}
    described = (
        {}
        if kind is GroupKind.TAGS
        else await _Branch(reader, name).describe([commit.sha for commit in commits], chosen.now)
    )
    return CompatColumns(
        kind=kind,
        name=name,
        commits=tuple(
            _make_commit(commit, described, _make_cells(chosen, commit, accepted, index))
            for index, commit in enumerate(commits)
        ),
    )


def _make_cells(
    chosen: _Chosen, commit: ReadCommit, accepted: Mapping[str, Sequence[bool | None]], index: int
) -> tuple[CompatCell, ...]:
    cells = []
    for entry in chosen.entries:
        state = chosen.reader.get(commit, entry.name.key)
        is_between = state is not CompatState.GREEN and accepted[entry.name.key][index] is True
        cells.append(CompatCell(entry.name, state, is_between))
    return tuple(cells)


def _make_commit(
    commit: ReadCommit, described: Mapping[str, GreenCommit], cells: tuple[CompatCell, ...]
) -> CompatCommit:
    if commit.tag is not None:
        at = from_us(commit.tag["pushed_at"])
        return CompatCommit(
            sha=commit.sha, label=commit.tag["name"], title=None, number=None, pushed_at=at, cells=cells
        )
    known = described[commit.sha]
    return CompatCommit(
        sha=commit.sha,
        label=None,
        title=known.title,
        number=known.number,
        pushed_at=known.pushed_at,
        cells=cells,
    )
