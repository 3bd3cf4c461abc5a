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
_COUNT = (
    "SELECT j.delivery, j.downstream, j.state, j.conclusion, j.expected, count(*) AS number, max(j.attempt) AS attempt"
    " FROM jobs j WHERE j.delivery IN {deliveries} AND j.upstream = :upstream AND j.superseded = 0"
)
_BY_RESULT = " GROUP BY j.delivery, j.downstream, j.state, j.conclusion, j.expected"
_COUNTED = with_lists(f"{_COUNT}{_BY_RESULT}")
# Looking for a later attempt of each job takes as long as the rest, and few commits have one.
_COUNTED_LATEST = with_lists(f"{_COUNT} AND {NO_LATER_ATTEMPT}{_BY_RESULT}")
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
        rows = cast("Iterable[tuple[Any, ...]]", await self.tx.all(_DISPATCHES, **key))
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
        """How many jobs that count have each result, by delivery and backend."""
        rows = cast("list[tuple[Any, ...]]", await self.tx.all(_COUNTED, **key))
        repeated = sorted({row[0] for row in rows if row[6] > 1})
        if repeated:
            rows = [row for row in rows if row[0] not in set(repeated)]
            again = await self.tx.all(_COUNTED_LATEST, **{**key, "deliveries": json.dumps(repeated)})
            rows += cast("list[tuple[Any, ...]]", again)
        counts: dict[tuple[str, str], _JobCounts] = {}
        for delivery, downstream, state, conclusion, expected, number, _ in rows:
            counted = counts.setdefault((delivery, downstream), {})
            result = _COUNTED_AS[state, conclusion, expected]
            counted[result] = counted.get(result, 0) + number
        return counts

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
