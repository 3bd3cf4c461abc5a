"""The cells of a grid: for each row the delivery that is tested, the states of its backends, and its failed jobs' verdicts.

All rows of a page are read together, in a fixed number of statements. Jobs are counted in the database: a page has thousands.
"""

# ruff: noqa: S608 - every name in these statements is our own

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import text

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.statistics.figures import CountedAs, count_as
from crcr.decide.views.commit import state_of_dispatch
from crcr.decide.views.grids import BackendCell
from crcr.decide.views.overview import DispatchAnswer
from crcr.record.schema.main_tables import NOT_PASSED
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.views.backends.jobs import COUNTED_AS_SQL, NO_LATER_ATTEMPT
from crcr.record.views.visibility import VisibleBackends

LISTS = ("deliveries", "shas", "shown")
_ON_SQLITE = {name: f"(SELECT value FROM json_each(:{name}))" for name in LISTS}
_ON_POSTGRESQL = {name: f"(SELECT json_array_elements_text(CAST(:{name} AS json)))" for name in LISTS}


def with_lists(sql: str) -> Statement:
    """A statement in which `{deliveries}`, `{shas}` and `{shown}` are lists of texts, bound as JSON."""
    return Statement(text(sql.format(**_ON_SQLITE)), on_postgresql=text(sql.format(**_ON_POSTGRESQL)))


_OF_HEADS = with_lists(
    # Ordered here, SQLite would read all deliveries by their time.
    "SELECT guid, event, action, state, number, head_sha, base_ref, relay_reason, received_at FROM deliveries"
    " WHERE head_sha IN {shas} AND upstream = :upstream"
)
_DISPATCHES = with_lists(
    "SELECT delivery, downstream, level, state, reason, answer FROM dispatches WHERE delivery IN {deliveries}"
    " AND upstream = :upstream"
)
# Read from the primary key alone: the rows of jobs are large, and those of a commit are far apart.
_ALL_JOBS = with_lists(
    "SELECT j.delivery, j.downstream, count(*), max(j.attempt) FROM jobs j WHERE j.delivery IN {deliveries}"
    " AND j.upstream = :upstream GROUP BY j.delivery, j.downstream"
)
_NOT_PASSED = with_lists(
    "SELECT j.delivery, j.downstream, j.state, j.conclusion, j.expected, j.superseded, count(*) FROM jobs j"
    f" WHERE j.delivery IN {{deliveries}} AND j.upstream = :upstream AND {NOT_PASSED}"
    " GROUP BY j.delivery, j.downstream, j.state, j.conclusion, j.expected, j.superseded"
)
_PAIRS_ON_SQLITE = (
    "json_each(:pairs) AS p",
    "json_extract(p.value, '$[0]')",
    "json_extract(p.value, '$[1]')",
)
_PAIRS_ON_POSTGRESQL = (
    "json_array_elements(CAST(:pairs AS json)) AS p",
    "(p.value ->> 0)",
    "(p.value ->> 1)",
)


def _with_pairs(sql: str) -> Statement:
    """A statement over pairs of a delivery, `{1}`, and a backend, `{2}`, bound as JSON and read from `{0}`."""
    return Statement(
        text(sql.format(*_PAIRS_ON_SQLITE)), on_postgresql=text(sql.format(*_PAIRS_ON_POSTGRESQL))
    )


_REPLACED = _with_pairs(
    # From the few jobs of a second attempt to those of the first that they replace, by the whole key.
    "SELECT j.delivery, j.downstream, j.state, j.conclusion, j.expected, j.superseded, count(*) FROM {0}"
    " CROSS JOIN jobs later CROSS JOIN jobs j WHERE later.delivery = {1} AND later.upstream = :upstream"
    " AND later.downstream = {2} AND later.attempt = 2 AND j.delivery = later.delivery AND j.upstream = later.upstream"
    " AND j.downstream = later.downstream AND j.workflow = later.workflow AND j.run_id = later.run_id"
    " AND j.attempt = 1 AND j.job_name = later.job_name"
    " GROUP BY j.delivery, j.downstream, j.state, j.conclusion, j.expected, j.superseded"
)
_LATEST = _with_pairs(
    "SELECT j.delivery, j.downstream, j.state, j.conclusion, j.expected, count(*) FROM {0} CROSS JOIN jobs j"
    " WHERE j.delivery = {1} AND j.upstream = :upstream AND j.downstream = {2} AND j.superseded = 0"
    f" AND {NO_LATER_ATTEMPT} GROUP BY j.delivery, j.downstream, j.state, j.conclusion, j.expected"
)
OF_FAILURE = (
    "j.delivery = f.delivery AND j.upstream = f.upstream AND j.downstream = f.downstream AND j.workflow = f.workflow"
    " AND j.run_id = f.run_id AND j.attempt = f.attempt AND j.job_name = f.job_name AND j.superseded = 0"
    f" AND {NO_LATER_ATTEMPT} AND {COUNTED_AS_SQL} = 'failure'"
)
"""The job `j` of a recorded failure `f` counts, and still as failed."""
_FAILED = with_lists(
    # From the few failures to their jobs, never the other way round.
    "SELECT f.delivery, f.downstream, f.job_name, f.head_sha, f.verdict FROM failures f CROSS JOIN jobs j"
    f" WHERE f.delivery IN {{deliveries}} AND f.upstream = :upstream AND f.verdict IS NOT NULL AND {OF_FAILURE}"
)
_PERSONS = with_lists(
    "SELECT head_sha, downstream, job, verdict FROM person_verdicts WHERE head_sha IN {shas} AND upstream = :upstream"
    " ORDER BY person_verdict_id"
)

# A page has thousands of rows: a dictionary is much faster than calling the enum.
_DISPATCH_STATES = {state.value: state for state in DispatchState}
_ANSWERS: dict[str | None, DispatchAnswer | None] = {
    None: None,
    **{answer.value: answer for answer in DispatchAnswer},
}
_LEVELS = {int(level): level for level in Level}
_CONCLUSIONS: dict[str | None, Conclusion | None] = {
    None: None,
    **{conclusion.value: conclusion for conclusion in Conclusion},
}
_COUNTED_AS = {
    (state.value, conclusion, expected): count_as(state, _CONCLUSIONS[conclusion], _CONCLUSIONS[expected])
    for state in JobState
    for conclusion in _CONCLUSIONS
    for expected in _CONCLUSIONS
}
_JobCounts = dict[CountedAs, int]


def _plain(rows: list[Row]) -> list[tuple[Any, ...]]:
    """The rows by position: a look-up by name scans the columns."""
    return cast("list[tuple[Any, ...]]", rows)


def _add(counts: _JobCounts, result: Sequence[Any], number: int) -> None:
    """Add jobs with the same state, conclusion and expected conclusion."""
    counted_as = _COUNTED_AS[result[0], result[1], result[2]]
    counts[counted_as] = counts.get(counted_as, 0) + number


@dataclass(slots=True)
class CommitCells:
    """The cells of one delivery, and what else its dispatches say."""

    cells: list[BackendCell] = field(default_factory=list)
    held_for: set[str] = field(default_factory=set)
    """The reasons of its held backends."""
    is_gate_hidden: bool = False
    """Whether a backend that the reader may not see is part of its gate."""


@dataclass(frozen=True, slots=True)
class GridReader:
    """Reads the cells of one upstream's commits, inside one transaction."""

    tx: Tx
    upstream: RepoName
    visible: VisibleBackends

    async def read_deliveries(self, shas: Iterable[str]) -> dict[str, list[Row]]:
        """The deliveries about each of these commits, newest first."""
        found: dict[str, list[Row]] = defaultdict(list)
        rows = await self.tx.all(_OF_HEADS, shas=json.dumps(list(shas)), upstream=self.upstream.key)
        for row in sorted(rows, key=lambda row: (row["received_at"], row["guid"]), reverse=True):
            found[row["head_sha"]].append(row)
        return found

    async def read_cells(self, deliveries: Sequence[str]) -> Mapping[str, CommitCells]:
        """The states of the reporting backends that a reader may see, for each delivery."""
        found: dict[str, CommitCells] = defaultdict(CommitCells)
        if not deliveries:
            return found
        key = {"deliveries": json.dumps(deliveries), "upstream": self.upstream.key}
        counts = await self._count_jobs(key)
        rows = _plain(await self.tx.all(_DISPATCHES, **key))
        for delivery, downstream, level, state, reason, answer in sorted(rows, key=itemgetter(1)):
            commit, entry = found[delivery], self.visible.reporting.get(downstream)
            if level == Level.L4 and downstream not in self.visible.public:
                commit.is_gate_hidden = True
            if entry is None or level < Level.L2:
                continue
            dispatch, counted = _DISPATCH_STATES[state], counts.get((delivery, downstream), {})
            if dispatch is DispatchState.HELD and reason:
                commit.held_for.add(reason)
            commit.cells.append(
                BackendCell(
                    entry.name,
                    _LEVELS[level],
                    state_of_dispatch(dispatch, _ANSWERS[answer], counted, reports=True),
                    counted.get(CountedAs.FAILURE, 0),
                    counted.get(CountedAs.RUNNING, 0),
                    counted.get(CountedAs.SUCCESS, 0),
                    counted.get(CountedAs.OTHER, 0),
                )
            )
        return found

    async def _count_jobs(self, key: Mapping[str, str]) -> dict[tuple[str, str], _JobCounts]:
        """How many jobs that count have each result, by delivery and backend: all passed but those that did not."""
        counts: dict[tuple[str, str], _JobCounts] = {}
        twice: list[tuple[str, str]] = []
        more_often: list[tuple[str, str]] = []
        for delivery, downstream, number, attempts in _plain(await self.tx.all(_ALL_JOBS, **key)):
            counts[delivery, downstream] = {CountedAs.SUCCESS: number}
            if attempts > 1:
                (twice if attempts == 2 else more_often).append((delivery, downstream))
        others = _plain(await self.tx.all(_NOT_PASSED, **key))
        for delivery, downstream, *result, superseded, number in others:
            counted = counts[delivery, downstream]
            counted[CountedAs.SUCCESS] -= number
            if not superseded:
                _add(counted, result, number)
        for delivery, downstream, *result, superseded, number in await self._read_pairs(_REPLACED, twice):
            if not superseded:
                _add(counts[delivery, downstream], result, -number)
        for pair in {*twice, *((row[0], row[1]) for row in others)}:
            counts[pair] = {result: number for result, number in counts[pair].items() if number}
        counts.update({pair: {} for pair in more_often})
        for delivery, downstream, *result, number in await self._read_pairs(_LATEST, more_often):
            _add(counts[delivery, downstream], result, number)
        return counts

    async def _read_pairs(
        self, statement: Statement, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[Any, ...]]:
        if not pairs:
            return []
        rows = await self.tx.all(statement, pairs=json.dumps(pairs), upstream=self.upstream.key)
        return _plain(rows)

    async def read_verdicts(
        self, deliveries: Sequence[str], shas: Sequence[str]
    ) -> Mapping[str, set[VerdictKind]]:
        """The verdicts on the failed jobs of each delivery; a person's verdict counts in place of the rules'."""
        found: dict[str, set[VerdictKind]] = defaultdict(set)
        if not deliveries:
            return found
        upstream = self.upstream.key
        failed = await self.tx.all(_FAILED, deliveries=json.dumps(deliveries), upstream=upstream)
        if not failed:
            return found
        persons = {
            (row["head_sha"], row["downstream"], row["job"]): row["verdict"]
            for row in await self.tx.all(_PERSONS, shas=json.dumps(shas), upstream=upstream)
        }
        for row in failed:
            if row["downstream"] in self.visible.reporting:
                said = persons.get((row["head_sha"], row["downstream"], row["job_name"]))
                found[row["delivery"]].add(VerdictKind(said or row["verdict"]))
        return found
