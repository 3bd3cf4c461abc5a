"""The state of each backend at exactly one commit, read from its jobs.

A commit's results are those of its pushes and merge groups, which have deliveries, and of its nights, whose jobs have its SHA in place of
a delivery. Of a job that several of its deliveries ran, the newest delivery's result counts; of several nightly runs, that of the run that
began last. Nothing is kept for this: a callback writes no row more. `_OF_DELIVERIES` finds the first failed job of a delivery's backend
along `ix_jobs_not_passed` and stops there, which takes some 10 µs; only where an older delivery of a commit is worse than its newest,
`_OF_COMMITS` compares them job by job.
"""

# ruff: noqa: S608 - every name in these statements is our own

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy import text

from crcr.decide.compatibility import CompatState, NewestResult, judge_commit
from crcr.decide.model import RepoName
from crcr.record.schema.main_tables import NOT_PASSED
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.backends.jobs import NO_LATER_ATTEMPT
from crcr.record.views.grids.cells import with_lists

_DELIVERIES = with_lists(
    "SELECT head_sha, guid, received_at FROM deliveries WHERE head_sha IN {shas} AND upstream = :upstream"
    " AND event IN ('push', 'merge_group')"
)
_NIGHTLY_COMMITS = with_lists("SELECT sha FROM commits WHERE sha IN {shas} AND upstream = :upstream")

# From L3 on GitHub is asked for the end of each run, where its Actions can be read.
_OPEN_RUNS = with_lists(
    "SELECT n.delivery, n.downstream FROM runs n JOIN dispatches d ON d.delivery = n.delivery AND d.upstream = n.upstream"
    " AND d.downstream = n.downstream LEFT JOIN repositories r ON r.upstream = n.upstream AND r.downstream = n.downstream"
    " WHERE n.delivery IN {deliveries} AND n.upstream = :upstream AND n.superseded = 0 AND n.issuer = 'github'"
    " AND coalesce(n.over_attempt, 0) < n.attempt AND d.level >= 3"
    " AND coalesce(d.reads_actions, r.reads_actions) = 1"
)
OPEN_FOR = timedelta(days=1)
"""How long a delivery's run may be open: its end, too, may never become known."""

_FAILED = "j.ended_as IN ('failure', 'timed_out', 'silent')"
_UNDECIDED = (
    f"((j.ended_as IS NULL AND {NO_LATER_ATTEMPT}) OR (j.ended_as = 'other' AND j.conclusion = 'cancelled'))"
)
_COUNTS = "n.superseded = 0 AND coalesce(n.ended_as, '') <> 'superseded'"
# A sum is in no index: by its time alone a job would be looked for among all of the backend.
_REPLACED_AT_NIGHT = (
    " AND NOT (e.night = 1 AND EXISTS (SELECT 1 FROM jobs n WHERE n.delivery = j.delivery AND n.upstream = j.upstream"
    f" AND n.downstream = j.downstream AND n.workflow = j.workflow AND n.job_name = j.job_name AND {_COUNTS}"
    " AND n.in_progress_at + 0 > j.in_progress_at))"
)
_SAME_JOB = (
    "n.upstream = j.upstream AND n.downstream = j.downstream AND n.workflow = j.workflow AND n.job_name = j.job_name"
    f" AND {_COUNTS}"
)


@dataclass(frozen=True, slots=True)
class _Dialect:
    texts: str
    """A JSON list of texts as a table of `key`, its index, and `value`."""
    commits: str
    """The table of `key`, `keys` (the deliveries of a commit, newest first) and `night`."""
    jobs: str
    """The jobs `j` of a commit `e`."""
    replaced: str
    """Whether a newer delivery of the same commit has the job `j` too."""


_ON_SQLITE = _Dialect(
    "json_each({})",
    "(SELECT key, json_extract(value, '$.keys') AS keys, json_extract(value, '$.night') AS night FROM json_each(:entries))",
    "json_each(e.keys) AS k CROSS JOIN jobs j WHERE j.delivery = k.value",
    "EXISTS (SELECT 1 FROM json_each(e.keys) AS o CROSS JOIN jobs n WHERE o.key < k.key AND n.delivery = o.value"
    f" AND {_SAME_JOB})",
)
_ON_POSTGRESQL = _Dialect(
    "(SELECT v.value, v.position - 1 AS key FROM json_array_elements_text(CAST({} AS json)) WITH ORDINALITY"
    " AS v(value, position))",
    "(SELECT v.position - 1 AS key, ARRAY(SELECT json_array_elements_text(v.value -> 'keys')) AS keys,"
    " CAST(v.value ->> 'night' AS integer) AS night FROM json_array_elements(CAST(:entries AS json))"
    " WITH ORDINALITY AS v(value, position))",
    "jobs j WHERE j.delivery = ANY (e.keys)",
    "EXISTS (SELECT 1 FROM jobs n WHERE n.delivery = ANY (e.keys) AND array_position(e.keys, n.delivery)"
    f" < array_position(e.keys, j.delivery) AND {_SAME_JOB})",
)


def _write_worst(place: str, tables: str, is_newest: str = "") -> str:
    """The worst result of a backend's jobs in each place; null where it has no job there."""

    def jobs(condition: str) -> str:
        backend = "j.upstream = :upstream AND j.downstream = b.value AND j.superseded = 0"
        return f"{place} AND {backend} AND {condition}{is_newest}"

    undecided = "max(CASE WHEN j.ended_as IS NULL THEN 'running' ELSE 'cancelled' END)"
    failed_jobs, undecided_jobs = jobs(f"{NOT_PASSED} AND {_FAILED}"), jobs(f"{NOT_PASSED} AND {_UNDECIDED}")
    passed_jobs, other_jobs = jobs("j.ended_as = 'success'"), jobs("j.ended_as = 'other'")
    return (
        f"SELECT e.key AS entry, b.key AS backend, CASE WHEN EXISTS (SELECT 1 FROM {failed_jobs}) THEN 'failure'"
        f" ELSE coalesce((SELECT {undecided} FROM {undecided_jobs}), (SELECT 'success' FROM {passed_jobs} LIMIT 1),"
        f" (SELECT 'other' FROM {other_jobs} LIMIT 1)) END AS worst FROM {tables}"
    )


def _write_both(kind: str) -> Statement:
    """Of `deliveries`, or of `commits` with the newest result of each of their jobs."""
    dialects = []
    for dialect in (_ON_SQLITE, _ON_POSTGRESQL):
        if kind == "deliveries":
            dialects.append(
                _write_worst(
                    "jobs j WHERE j.delivery = e.value",
                    f"{dialect.texts.format(':entries')} AS e CROSS JOIN {dialect.texts.format(':backends')} AS b",
                )
            )
        else:
            is_newest = f" AND NOT {dialect.replaced}{_REPLACED_AT_NIGHT}"
            tables = f"{dialect.commits} AS e CROSS JOIN {dialect.texts.format(':backends')} AS b"
            dialects.append(_write_worst(dialect.jobs, tables, is_newest))
    return Statement(text(dialects[0]), on_postgresql=text(dialects[1]))


_OF_DELIVERIES, _OF_COMMITS = _write_both("deliveries"), _write_both("commits")
_RESULTS = {result.value: result for result in NewestResult}
_RANKS = {result: rank for rank, result in enumerate(NewestResult)}
_Results = dict[tuple[str, str], NewestResult]
"""By the key of a commit and the backend."""


class ReadCommit(NamedTuple):
    sha: str
    position: int
    key: str
    """Its SHA; of a tag also its name: it has the results of the tag object, too, which its commit's column has not."""
    deliveries: tuple[str, ...] = ()
    """Newest first."""
    recent: tuple[str, ...] = ()
    """Those of them whose runs may still be open."""
    is_nightly: bool = False
    """Whether a night may have tested it."""
    tag: Row | None = None

    @property
    def is_tested(self) -> bool:
        return self.is_nightly or bool(self.deliveries)


@dataclass(slots=True)
class CommitStateReader:
    """The states of backends at commits; each is read once."""

    tx: Tx
    upstream: RepoName
    now: datetime
    _known: dict[tuple[str, str], CompatState | None] = field(default_factory=dict)

    async def find_results(self, commits: Sequence[ReadCommit]) -> list[ReadCommit]:
        """The commits with the keys of their jobs; a tag object's results are its commit's."""
        objects = {commit.sha: str(commit.tag["object_sha"]) for commit in commits if commit.tag is not None}
        shas = json.dumps([*(commit.sha for commit in commits), *objects.values()])
        by_head: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for head, guid, received_at in await self._read_plain(_DELIVERIES, shas=shas):
            by_head[head].append((received_at, guid))
        since = to_us(self.now - OPEN_FOR)
        nights = {sha for (sha,) in await self._read_plain(_NIGHTLY_COMMITS, shas=shas)}
        found = []
        for commit in commits:
            keys = by_head.get(commit.sha, [])
            if objects and objects.get(commit.sha, commit.sha) != commit.sha:
                keys = keys + by_head.get(objects[commit.sha], [])
            deliveries = tuple(guid for _, guid in (sorted(keys, reverse=True) if len(keys) > 1 else keys))
            recent = tuple(guid for received_at, guid in keys if received_at >= since)
            found.append(
                commit._replace(deliveries=deliveries, recent=recent, is_nightly=commit.sha in nights)
            )
        return found

    async def _read_plain(self, statement: Statement, **params: str) -> list[tuple[Any, ...]]:
        """The rows by position."""
        return cast(
            "list[tuple[Any, ...]]", await self.tx.all(statement, upstream=self.upstream.key, **params)
        )

    async def read(self, commits: Sequence[ReadCommit], backends: Sequence[str]) -> None:
        """Read the states that are not known yet."""
        known = self._known
        by_missing: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for backend in backends:
            missing = tuple([commit.key for commit in commits if (commit.key, backend) not in known])
            by_missing[missing].append(backend)
        by_key = {commit.key: commit for commit in commits}
        for keys, of_backends in by_missing.items():
            if keys:
                await self._read_all([by_key[key] for key in keys], of_backends)

    async def _read_all(self, commits: Sequence[ReadCommit], backends: Sequence[str]) -> None:
        worst = await self._read_deliveries(commits, backends)
        nights = [commit for commit in commits if commit.is_nightly]
        at_night = await self._read_commits(nights, backends, is_night=True) if nights else {}
        open_runs = await self._read_open_runs(commits)
        for commit in commits:
            for backend in backends:
                cell = commit.key, backend
                results = [found[cell] for found in (worst, at_night) if cell in found]
                if cell in worst and any((delivery, backend) in open_runs for delivery in commit.recent):
                    results.append(NewestResult.RUNNING)
                self._known[cell] = judge_commit(results)

    async def _read_open_runs(self, commits: Sequence[ReadCommit]) -> set[tuple[str, str]]:
        """The deliveries and backends with a run that goes on: its next jobs may not have reported yet."""
        recent = [delivery for commit in commits for delivery in commit.recent]
        if not recent:
            return set()
        rows = await self._read_plain(_OPEN_RUNS, deliveries=json.dumps(recent))
        return {(delivery, downstream) for delivery, downstream in rows}

    async def _read_deliveries(self, commits: Sequence[ReadCommit], backends: Sequence[str]) -> _Results:
        """The newest delivery of each commit first: where it failed, the commit has failed, and older ones are not read."""
        worst: _Results = {}
        is_unclear: dict[str, dict[str, ReadCommit]] = defaultdict(dict)
        """Commits with an older delivery that is worse than the newest, by backend."""
        rest, depth = [commit for commit in commits if commit.deliveries], 0
        while rest:
            entries = json.dumps([commit.deliveries[depth] for commit in rest])
            for index, backend, result in await self._read_worst(_OF_DELIVERIES, entries, backends):
                cell = rest[index].key, backend
                if cell not in worst:
                    worst[cell] = result
                elif _RANKS[result] < _RANKS[worst[cell]]:
                    is_unclear[backend][rest[index].key] = rest[index]
            depth += 1
            rest = [
                commit
                for commit in rest
                if len(commit.deliveries) > depth
                and any(worst.get((commit.key, backend)) is not NewestResult.FAILURE for backend in backends)
            ]
        for backend, unclear in is_unclear.items():
            worst |= await self._read_commits(list(unclear.values()), [backend])
        return worst

    async def _read_commits(
        self, commits: Sequence[ReadCommit], backends: Sequence[str], *, is_night: bool = False
    ) -> _Results:
        entries = [
            {"keys": [commit.sha] if is_night else commit.deliveries, "night": int(is_night)}
            for commit in commits
        ]
        rows = await self._read_worst(_OF_COMMITS, json.dumps(entries), backends)
        return {(commits[index].key, backend): result for index, backend, result in rows}

    async def _read_worst(
        self, statement: Statement, entries: str, backends: Sequence[str]
    ) -> list[tuple[int, str, NewestResult]]:
        """The worst result of each entry and backend that has any."""
        rows = await self._read_plain(statement, entries=entries, backends=json.dumps(backends))
        return [
            (entry, backends[index], _RESULTS[worst]) for entry, index, worst in rows if worst is not None
        ]

    def get(self, commit: ReadCommit, backend: str) -> CompatState | None:
        return self._known[commit.key, backend]

    def is_green(self, commit: ReadCommit, backend: str) -> bool:
        return self._known.get((commit.key, backend)) is CompatState.GREEN
