"""A backend's own page: the newest dispatches as rows, their jobs as columns, and the failures among them.

Superseded runs and earlier attempts are left out of the cells; superseded commits keep their row, marked.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, select, text

from crcr.decide.model import RepoName
from crcr.decide.numbers import Counted
from crcr.decide.views import Column, JobView, MatrixRow
from crcr.record.database import Row, Tx
from crcr.record.schema import jobs
from crcr.record.statement import Statement
from crcr.record.times import to_us
from crcr.record.views_backends import BackendReader
from crcr.record.views_deliveries import dispatch_view
from crcr.record.views_jobs import CURRENT_RUN, LATEST_ATTEMPT, OF_BACKEND, VIEW_COLUMNS, job_view, with_tests
from crcr.record.views_listed import Seen

_MOST_ROWS = 50
_MOST_COLUMNS = 60
_MOST_FAILURES = 20

_ROWS = Statement(
    text(
        "SELECT d.*, p.title, p.author, v.ref FROM dispatches d"
        " LEFT JOIN pulls p ON p.upstream = d.upstream AND p.number = d.number"
        " LEFT JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
        " WHERE d.upstream = :upstream AND d.downstream = :downstream AND d.created_at >= :since"
        " ORDER BY d.created_at DESC, d.delivery DESC LIMIT :limit"
    )
)
_CELLS = Statement(
    select(*VIEW_COLUMNS).where(
        *OF_BACKEND, jobs.c.delivery == bindparam("delivery"), CURRENT_RUN, LATEST_ATTEMPT
    )
)


@dataclass(frozen=True, slots=True)
class Matrix:
    columns: tuple[Column, ...] = ()
    left_out: int = 0
    rows: tuple[MatrixRow, ...] = ()


async def read_matrix(reader: BackendReader, downstream: RepoName) -> Matrix:
    seen, where = reader.seen, {"upstream": reader.upstream.key, "downstream": downstream.key}
    found: list[tuple[Row, dict[Column, JobView]]] = []
    for row in await reader.tx.all(_ROWS, since=to_us(reader.since), limit=_MOST_ROWS, **where):
        cells = await reader.tx.all(_CELLS, delivery=row["delivery"], **where)
        reporting = downstream.key in seen.reporting
        views = [job_view(each, seen) for each in cells if reporting]
        found.append((row, {_column(view): view for view in views}))
    columns = tuple(sorted({column for _, cells in found for column in cells}, key=_order))
    shown = columns[:_MOST_COLUMNS]
    rows = tuple(_row(row, cells, shown, seen) for row, cells in found)
    return Matrix(shown, len(columns) - len(shown), rows)


async def read_failures(
    tx: Tx, upstream: RepoName, seen: Seen, rows: Iterable[MatrixRow]
) -> tuple[JobView, ...]:
    """The newest failures of a matrix that still matter, each with its first failed tests."""
    counted = (row for row in rows if not (row.dispatch.superseded_at or row.dispatch.test))
    failed = [cell for row in counted for cell in row.cells if cell and cell.counted is Counted.FAILURE]
    return tuple([await with_tests(tx, upstream, seen, each) for each in failed[:_MOST_FAILURES]])


def _row(row: Row, cells: dict[Column, JobView], columns: Iterable[Column], seen: Seen) -> MatrixRow:
    return MatrixRow(
        dispatch=dispatch_view(row, seen),
        title=row["title"],
        author=row["author"],
        ref=row["ref"],
        cells=tuple(cells.get(column) for column in columns),
    )


def _column(job: JobView) -> Column:
    return Column(job.workflow, job.workflow_name, job.job_name)


def _order(column: Column) -> tuple[str, str, str]:
    return column.workflow_name.lower(), column.workflow, column.job_name.lower()
