"""The backend page: one backend's summary, matrix, jobs, newest failures, levels and refused reports.

The matrix has events as rows and jobs as columns. Dispatched events are read newest first along their index, at most
`_MOST_SEARCHED` of them for one page, so that a filter that matches nothing costs no more than a page. Cells leave out
superseded runs and earlier attempts; rows leave out superseded commits unless the query includes them (`older`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

from sqlalchemy import ColumnClause, bindparam, select, text

from crcr.decide.model import RepoName
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.backend import (
    BackendPage,
    BackendQuery,
    Column,
    JobDetail,
    JobFigures,
    Matrix,
    MatrixRow,
)
from crcr.decide.views.overview import JobCell
from crcr.errors import BadRequest, NotFound
from crcr.record.jobs.tested_commits import read_commit_place
from crcr.record.repositories.downstreams import read_level_history
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, plain_rows
from crcr.record.store.statement import Statement, ascii_lower
from crcr.record.store.times import from_us, to_us
from crcr.record.views.backends.backend_reader import (
    BackendReader,
)
from crcr.record.views.backends.failure_causes import (
    FailedCells,
    has_failed,
    read_causes,
    read_failure_lines,
    read_failures,
)
from crcr.record.views.backends.ingested import read_ingested_rows
from crcr.record.views.backends.job_results import read_job_results
from crcr.record.views.backends.jobs import (
    CELL_COLUMNS,
    COMMIT_COLUMNS,
    COUNTED_AS_SQL,
    CURRENT_RUN,
    IN_ORDER,
    NO_LATER_ATTEMPT,
    OF_BACKEND,
    VIEW_COLUMNS,
    Commit,
    job_cells,
    job_detail,
    job_views,
    read_jobs_by_name,
    sort_worst_first,
)
from crcr.record.views.joining.setup import read_refusals
from crcr.record.views.levels import backend_level
from crcr.record.views.logs.deliveries import dispatch_view
from crcr.record.views.visibility import VisibleBackends

_MOST_COLUMNS = 200
_MOST_SEARCHED = 2_000
_MOST_NIGHTLY_JOBS = 5_000
_MOST_NIGHTS = 100
"""Nightly runs are few: those of the window fit on one page."""
_NEWEST = (2**62, "")
_DAY_US = 86_400_000_000

_CANDIDATES = (
    "SELECT d.* FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = :downstream AND d.event = :event"
    " AND d.created_at >= :since AND d.created_at <= :at AND (d.created_at < :at OR d.delivery < :last)"
    " AND (:older = 1 OR (d.superseded_at IS NULL AND coalesce(d.action, '') <> 'closed'))"
    " ORDER BY d.created_at DESC, d.delivery DESC LIMIT :searched"
)
_SEARCHED = Statement(
    text(f"SELECT c.created_at, c.delivery FROM ({_CANDIDATES}) AS c")  # noqa: S608  ours
)
# The result of a cell (`count_as`), which may differ from the sums: here a superseded commit's failure counts too.
_WITH_RESULT = (
    "EXISTS (SELECT 1 FROM jobs j WHERE j.delivery = found.delivery AND j.upstream = found.upstream"  # noqa: S608  ours
    f" AND j.downstream = found.downstream AND j.superseded = 0 AND {NO_LATER_ATTEMPT} AND :result = {COUNTED_AS_SQL})"
)
_ROWS = Statement(
    text(
        f"SELECT found.*, p.title, p.author, v.ref FROM ({_CANDIDATES}) AS found"  # noqa: S608  ours
        " LEFT JOIN pulls p ON p.upstream = found.upstream AND p.number = found.number"
        " LEFT JOIN deliveries v ON v.guid = found.delivery AND v.upstream = found.upstream"
        " WHERE (CAST(:author AS TEXT) IS NULL OR lower(p.author) = :author) AND (CAST(:words AS TEXT) IS NULL"
        " OR lower(p.title) LIKE :words ESCAPE '!' OR lower(p.author) LIKE :words ESCAPE '!'"
        " OR lower(v.ref) LIKE :words ESCAPE '!' OR found.head_sha LIKE :start ESCAPE '!'"
        " OR ('#' || found.number) LIKE :start ESCAPE '!' OR CAST(found.number AS TEXT) LIKE :start ESCAPE '!')"
        f" AND (CAST(:result AS TEXT) IS NULL OR {_WITH_RESULT})"
        " AND (CAST(:verdict AS TEXT) IS NULL OR EXISTS (SELECT 1 FROM failures f WHERE f.delivery = found.delivery"
        " AND f.upstream = found.upstream AND f.downstream = found.downstream AND f.verdict = :verdict))"
        " ORDER BY found.created_at DESC, found.delivery DESC LIMIT :limit"
    )
)
_JUDGED_RUNS = Statement(
    text(
        "SELECT DISTINCT workflow, run_id FROM failures WHERE upstream = :upstream AND downstream = :downstream"
        " AND at >= :since AND verdict = :verdict"
    )
)


def _select_cells(columns: tuple[ColumnClause[Any], ...]) -> Statement:
    return Statement(
        select(*columns)
        .where(*OF_BACKEND, jobs.c.delivery == bindparam("delivery"), CURRENT_RUN)
        .order_by(*IN_ORDER)
    )


def _select_nightly(columns: tuple[ColumnClause[Any], ...]) -> Statement:
    return Statement(
        select(*columns)
        .where(
            *OF_BACKEND,
            jobs.c.event == bindparam("event"),
            text("jobs.ended_as IN ('success', 'failure', 'timed_out', 'other')"),
            text("jobs.completed_at >= :since AND jobs.completed_at < :until"),
        )
        .order_by(jobs.c.completed_at.desc(), jobs.c.delivery.desc(), *(column.desc() for column in IN_ORDER))
        .limit(bindparam("most"))
    )


@dataclass(frozen=True, slots=True)
class _CellSource:
    """Where cells come from: whole jobs, or just what their cells show."""

    of_delivery: Statement
    nightly: Statement
    make: Callable[[list[Row], VisibleBackends, RepoName, Commit | None], Sequence[JobCell]]


_WHOLE_JOBS = _CellSource(
    _select_cells(VIEW_COLUMNS),
    _select_nightly(VIEW_COLUMNS),
    lambda rows, visible, _, __: job_views(rows, visible),
)
_CELLS_ONLY = _CellSource(
    _select_cells(CELL_COLUMNS),
    _select_nightly((*CELL_COLUMNS, *COMMIT_COLUMNS)),
    lambda rows, visible, name, commit: job_cells(rows, visible.entry(name).name, commit),
)


async def backend_page(reader: BackendReader, query: BackendQuery, *, ingests: bool) -> BackendPage:
    entry = reader.visible.entry(query.downstream)
    tx, upstream = reader.tx, reader.upstream
    public, reporting = entry.name.key in reader.visible.public, entry.name.key in reader.visible.reporting
    matrix = await MatrixReader(reader, query).read() if public else Matrix()
    failed = FailedCells.from_rows(matrix.rows)
    lines = await read_failure_lines(reader, failed)
    by_name, more = await _read_jobs_by_name(reader, entry.name) if reporting else ((), 0)
    return BackendPage(
        query=replace(query, downstream=entry.name),
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.history.state,
        ingests=ingests,
        summary=await reader.summary(entry, await reader.read_states(entry.name), parts=True),
        matrix=matrix,
        jobs=by_name,
        jobs_left_out=more,
        failures=await read_failures(reader, failed) if query.whole_jobs else (),
        causes=await read_causes(reader, failed, lines),
        lines=lines,
        readiness=await backend_level(
            tx, upstream, entry.name, reader.visible, reader.levels, now=reader.now
        ),
        levels=await read_level_history(tx, upstream, entry.name) if public else (),
        detail=await _read_detail(reader, query),
        refusals=await read_refusals(tx, upstream, entry.name, reader.visible, reader.now),
    )


async def _read_jobs_by_name(reader: BackendReader, name: RepoName) -> tuple[tuple[JobFigures, ...], int]:
    history = reader.history.backend_jobs(name.key)
    if history is not None:
        return sort_worst_first(history)
    return await read_jobs_by_name(reader.tx, reader.upstream, name, reader.kind, reader.window)


async def _read_detail(reader: BackendReader, query: BackendQuery) -> JobDetail | None:
    if query.detail is None:
        return None
    try:
        detail = await job_detail(reader.tx, reader.upstream, query.downstream, query.detail, reader.visible)
    except NotFound:
        return None
    return await read_job_results(reader.tx, detail, reader.visible)


# The matrix

_ColumnKey = tuple[str, str, str]
_EventRow = tuple[dict[str, Any], Sequence[JobCell]]


@dataclass(frozen=True, slots=True)
class MatrixReader:
    reader: BackendReader
    query: BackendQuery

    async def read(self) -> Matrix:
        rows, searched, next_cursor = await self._read_rows()
        most = _MOST_NIGHTS if self.query.kind is ResultKind.NIGHTLY else self.query.limit
        shown = rows[:most]
        if len(rows) > len(shown) and self.query.kind is not ResultKind.NIGHTLY:
            last = shown[-1][0]
            next_cursor = (to_us(last["at"]), last["delivery"])
        jobs_of = [_by_column(facts, cells) for facts, cells in shown]
        columns = sorted(
            (Column(*key) for key in set[_ColumnKey]().union(*jobs_of)),
            key=_column_order,
        )
        matching = [column for column in columns if self._matches_job(column)]
        if self.query.only_failing:
            failed = {_column_key(cell) for _, cells in shown for cell in cells if has_failed(cell)}
            matching = [
                column
                for column in matching
                if (column.workflow, column.workflow_name, column.job_name) in failed
            ]
        columns_shown = tuple(matching[:_MOST_COLUMNS])
        column_keys = [(column.workflow, column.workflow_name, column.job_name) for column in columns_shown]
        return Matrix(
            columns=columns_shown,
            columns_left_out=len(matching) - len(columns_shown),
            rows=tuple(
                _make_row(facts, jobs, column_keys) for (facts, _), jobs in zip(shown, jobs_of, strict=True)
            ),
            searched=searched,
            next=next_cursor,
        )

    async def _read_rows(self) -> tuple[list[_EventRow], int, tuple[str | int, ...] | None]:
        if self.query.kind is ResultKind.NIGHTLY:
            rows = await self._read_nightly()
            return rows, len(rows), None
        if self.query.kind is ResultKind.INGESTED:
            query = replace(self.query, after=self._after)
            page = await read_ingested_rows(self.reader.tx, query, self.reader.visible, self._since)
            return [*page.rows], page.searched, page.next
        return await self._read_dispatched()

    async def _read_dispatched(self) -> tuple[list[_EventRow], int, tuple[str | int, ...] | None]:
        most = _MOST_SEARCHED if self._is_filtered else self.query.limit + 1
        rows: list[Row] = []
        searched, end = 0, (0, "")
        for event in self.query.kind.events:
            params = {**self._params(event), "searched": most}
            if self._is_filtered:
                candidates = await self.reader.tx.all(_SEARCHED, **params)
                positions: list[tuple[int, str]] = [
                    (row["created_at"], row["delivery"]) for row in candidates
                ]
                searched += len(positions)
                end = max(end, min(positions)) if len(positions) == most else end
            rows += await self.reader.tx.all(_ROWS, **params, limit=self.query.limit + 1, **self._filters())
        # Rows beyond the end of one event's search are dropped: that event may have rows there which were not read.
        rows = [row for row in rows if (row["created_at"], row["delivery"]) >= end]
        rows.sort(key=lambda row: (row["created_at"], row["delivery"]), reverse=True)
        # One row more than the page shows says that there are more; its cells are not needed.
        events: list[_EventRow] = [
            (
                _event_facts(row, self.reader.visible),
                await self._read_cells(row) if index < self.query.limit else [],
            )
            for index, row in enumerate(plain_rows(rows[: self.query.limit + 1]))
        ]
        return events, searched or len(events), end if end[0] else None

    @property
    def _since(self) -> int:
        """When the events shown begin."""
        day = self.query.day
        return to_us(self.reader.window.since if day is None else datetime.combine(day, time(), UTC))

    @property
    def _after(self) -> tuple[str | int, ...] | None:
        """The position after which rows are read; those of a day end before the next one begins."""
        if self.query.day is None:
            return self.query.after
        return min(_cursor_start(self.query.after), (self._since + _DAY_US, ""))

    @property
    def _is_filtered(self) -> bool:
        return any((self.query.author, self.query.text, self.query.result, self.query.verdict))

    @property
    def _source(self) -> _CellSource:
        return _WHOLE_JOBS if self.query.whole_jobs else _CELLS_ONLY

    async def _read_cells(self, dispatch: Row) -> Sequence[JobCell]:
        if self.query.downstream.key not in self.reader.visible.reporting:
            return []
        commit = (dispatch["delivery"], dispatch["event"], dispatch["head_sha"])
        rows = await self.reader.tx.all(self._source.of_delivery, delivery=commit[0], **self._backend())
        attempts = self._make_cells(rows, commit)  # of a job, the newest is last
        if not any(job.attempt > 1 for job in attempts):
            return attempts
        return [*{(job.workflow, job.run_id, job.job_name): job for job in attempts}.values()]

    def _make_cells(self, rows: list[Row], commit: Commit | None = None) -> Sequence[JobCell]:
        return self._source.make(rows, self.reader.visible, self.query.downstream, commit)

    async def _read_nightly(self) -> list[_EventRow]:
        """One row for each run, whatever commits its jobs name."""
        if self.query.downstream.key not in self.reader.visible.reporting:
            return []
        runs: dict[tuple[str, str], list[JobCell]] = {}
        for event in self.query.kind.events:
            rows = await self.reader.tx.all(
                self._source.nightly,
                **self._backend(),
                event=event,
                since=self._since,
                # A night that began on the day may end on the next one.
                until=self._since + 2 * _DAY_US if self.query.day else _NEWEST[0],
                most=_MOST_NIGHTLY_JOBS,
            )
            for job in self._make_cells(rows):
                runs.setdefault((job.workflow, job.run_id), []).append(job)
        judged = await self._read_judged_runs() if self.query.verdict else None
        nights: list[_EventRow] = [
            (_nightly_facts(cells), cells)
            for key, cells in runs.items()
            if self._matches(cells) and (judged is None or key in judged)
        ]
        if self.query.day is not None:
            first, end = self._since, self._since + _DAY_US
            nights = [night for night in nights if first <= to_us(night[0]["at"]) < end]
        nights.sort(key=lambda row: row[0]["at"], reverse=True)
        for facts, _ in nights[:_MOST_NIGHTS]:
            facts["place"] = await read_commit_place(self.reader.tx, self.query.upstream, facts["head_sha"])
        return nights

    async def _read_judged_runs(self) -> set[tuple[str, str]]:
        """Workflow and id of the runs of the window with a failed job of the chosen verdict."""
        rows = await self.reader.tx.all(
            _JUDGED_RUNS,
            **self._backend(),
            verdict=self.query.verdict.value if self.query.verdict else None,
            since=self._since,
        )
        return {(row["workflow"], row["run_id"]) for row in rows}

    def _matches(self, cells: list[JobCell]) -> bool:
        words = (self.query.text or "").lower()
        named = not words or any(words in (cell.head_sha or "") for cell in cells)
        return named and (self.query.result is None or any(c.counted is self.query.result for c in cells))

    def _matches_job(self, column: Column) -> bool:
        words = (self.query.job or "").lower()
        return words in column.job_name.lower() or words in column.workflow_name.lower()

    def _backend(self) -> dict[str, str]:
        return {"upstream": self.query.upstream.key, "downstream": self.query.downstream.key}

    def _params(self, event: str) -> dict[str, Any]:
        at, last = _cursor_start(self._after)
        return {
            **self._backend(),
            "event": event,
            "since": self._since,
            "at": at,
            "last": last,
            "older": int(self.query.older),
        }

    def _filters(self) -> dict[str, Any]:
        words = _escape_like(ascii_lower(self.query.text or ""))
        return {
            "author": ascii_lower(self.query.author) if self.query.author else None,
            "result": self.query.result.value if self.query.result else None,
            "verdict": self.query.verdict.value if self.query.verdict else None,
            "words": f"%{words}%" if words else None,
            "start": f"{words}%" if words else None,
        }


def _cursor_start(after: tuple[str | int, ...] | None) -> tuple[int, str]:
    match after or _NEWEST:
        case (int(at), str(delivery)):
            return at, delivery
    raise BadRequest("the cursor is not one of ours", hint="pass on `next` of the page before, unchanged")


def _escape_like(words: str | None) -> str | None:
    """Escape the wildcards of LIKE."""
    if not words:
        return None
    return words.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _event_facts(row: Row, visible: VisibleBackends) -> dict[str, Any]:
    same = ("event", "action", "number", "head_sha", "delivery", "title", "author", "ref")
    return {
        **{name: row[name] for name in same},
        "at": from_us(row["created_at"]),
        "key": row["delivery"],
        "dispatch": dispatch_view(row, visible),
    }


def _nightly_facts(cells: list[JobCell]) -> dict[str, Any]:
    first = min(cells, key=lambda cell: cell.started_at)
    shas = Counter(cell.head_sha for cell in cells if cell.head_sha)
    sha = shas.most_common(1)[0][0] if shas else None
    return {
        "event": first.event,
        "head_sha": sha,
        "delivery": sha or "",
        "at": first.started_at,
        "key": f"{first.workflow}/{first.run_id}",
    }


def _by_column(facts: dict[str, Any], cells: Sequence[JobCell]) -> dict[_ColumnKey, JobCell]:
    """The job of each column. There are thousands: a tuple is cheaper than a `Column`."""
    own = (
        "place" in facts
    )  # such a run may name two commits: of two results in one cell a failed one is shown
    by_column = {(job.workflow, job.workflow_name, job.job_name): job for job in cells}
    if len(by_column) < len(cells):
        cells = sorted(cells, key=lambda job: (own and job.counted is CountedAs.FAILURE, job.started_at))
        by_column = {(job.workflow, job.workflow_name, job.job_name): job for job in cells}
    return by_column


def _make_row(
    facts: dict[str, Any], jobs: Mapping[_ColumnKey, JobCell], column_keys: list[_ColumnKey]
) -> MatrixRow:
    dispatch = facts.get("dispatch")
    return MatrixRow(
        key=facts.get("key") or facts["delivery"],
        event=facts["event"],
        action=facts.get("action"),
        number=facts.get("number"),
        head_sha=facts.get("head_sha"),
        delivery=facts["delivery"],
        at=facts["at"],
        title=facts.get("title"),
        author=facts.get("author"),
        ref=facts.get("ref"),
        superseded=dispatch is not None and dispatch.superseded_at is not None,
        test=dispatch is not None and dispatch.test,
        dispatch=dispatch,
        place=facts.get("place"),
        cells=tuple([jobs.get(key) for key in column_keys]),
    )


def _column_key(job: JobCell) -> _ColumnKey:
    return job.workflow, job.workflow_name, job.job_name


def _column_order(column: Column) -> tuple[str, str, str]:
    return column.workflow_name.lower(), column.workflow, column.job_name.lower()
