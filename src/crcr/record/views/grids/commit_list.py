"""The list of a branch's commits, newest first: the cells of the delivery that tested each, and its in-tree checks.

A backend that the query opens is read job by job, as a matrix with one row for each commit of the page.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.backend import Column, Matrix, MatrixRow
from crcr.decide.views.grids import CommitLine, CommitList, CommitListQuery, InTreeCell, find_columns
from crcr.decide.views.overview import JobCell
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us
from crcr.record.views.backends.jobs import CELL_COLUMNS, COMMIT_COLUMNS, job_cells
from crcr.record.views.commits.pull_and_commit import TESTED_ACTIONS, find_tested_delivery
from crcr.record.views.failures.failing_jobs import read_base_branch
from crcr.record.views.grids.cells import CommitCells, GridReader, with_lists
from crcr.record.views.paging import bad_cursor
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

MOST_OPENED = 5
"""Backends whose jobs are shown at the same time."""
_MOST_COLUMNS = 200
_AFTER_ALL = (2**62, "")
_COMMITS = Statement(
    text(
        "SELECT c.sha, c.position, c.pushed_at, c.title, c.number, p.title AS pull_title, p.author FROM base_commits c"
        " LEFT JOIN pulls p ON p.upstream = c.upstream AND p.number = c.number WHERE c.upstream = :upstream"
        " AND c.ref = :ref AND c.position <= :position AND (c.position < :position OR c.sha < :sha)"
        " ORDER BY c.position DESC, c.sha DESC LIMIT :limit"
    )
)
_IN_TREE = with_lists(
    "SELECT sha, passed, failed, running FROM in_tree_commits WHERE sha IN {shas} AND upstream = :upstream"
)
_JOB_COLUMNS = ", ".join(column.name for column in (*CELL_COLUMNS, *COMMIT_COLUMNS))
_JOBS = with_lists(
    f"SELECT {_JOB_COLUMNS} FROM jobs WHERE delivery IN {{deliveries}} AND upstream = :upstream"  # noqa: S608  ours
    " AND downstream = :downstream AND superseded = 0 ORDER BY workflow, run_id, attempt, job_name"
)


async def commit_list(tx: Tx, query: CommitListQuery, visible: VisibleBackends) -> CommitList:
    opened = [backend.key for backend in query.opened if backend.key in visible.reporting]
    branch = query.branch or await read_base_branch(tx, query.upstream)
    position, sha = _read_cursor(query.after)
    place = {"upstream": query.upstream.key, "ref": branch or "", "position": position, "sha": sha}
    found = await tx.all(_COMMITS, limit=query.limit + 1, **place)
    rows = found[: query.limit]
    reader = GridReader(tx, query.upstream, visible)
    heads = await reader.read_deliveries([row["sha"] for row in rows])
    tested = {sha: find_tested_delivery(about, *TESTED_ACTIONS) for sha, about in heads.items()}
    delivery_of = {row["sha"]: tested.get(row["sha"]) for row in rows}
    deliveries = [delivery for delivery in delivery_of.values() if delivery is not None]
    cells = await reader.read_cells(deliveries)
    in_tree = await _read_in_tree(tx, query.upstream, list(delivery_of))
    lines = tuple(
        _line(row, delivery := delivery_of[row["sha"]], cells.get(delivery or ""), in_tree.get(row["sha"]))
        for row in rows
    )
    levels = {key: entry.level for key, entry in visible.reporting.items()}
    return CommitList(
        items=lines,
        next=(rows[-1]["position"], rows[-1]["sha"]) if len(found) > query.limit else None,
        cursor=await newest_change(tx),
        branch=branch,
        columns=find_columns((line.backends for line in lines), levels),
        opened={
            key: await _read_matrix(reader, visible.reporting[key].name, lines)
            for key in opened[:MOST_OPENED]
        },
    )


def _read_cursor(after: tuple[str | int, ...] | None) -> tuple[int, str]:
    match after or _AFTER_ALL:
        case (int(position), str(sha)):
            return position, sha
    raise bad_cursor()


async def _read_in_tree(tx: Tx, upstream: RepoName, shas: Sequence[str]) -> Mapping[str, InTreeCell]:
    rows = await tx.all(_IN_TREE, shas=json.dumps(shas), upstream=upstream.key)
    return {row["sha"]: InTreeCell(row["passed"], row["failed"], row["running"]) for row in rows}


def _line(
    row: Row, delivery: str | None, commit: CommitCells | None, in_tree: InTreeCell | None
) -> CommitLine:
    return CommitLine(
        sha=row["sha"],
        title=row["title"] or row["pull_title"],
        number=row["number"],
        author=row["author"],
        pushed_at=from_us(row["pushed_at"]),
        delivery=delivery,
        in_tree=in_tree,
        backends=tuple(commit.cells) if commit else (),
    )


async def _read_matrix(reader: GridReader, backend: RepoName, lines: Sequence[CommitLine]) -> Matrix:
    """The jobs of one backend on these commits; of a job's attempts the last one counts."""
    deliveries = [line.delivery for line in lines if line.delivery is not None]
    key = {"upstream": reader.upstream.key, "downstream": backend.key, "deliveries": json.dumps(deliveries)}
    jobs_of: dict[str, dict[Column, JobCell]] = {}
    for job in job_cells(await reader.tx.all(_JOBS, **key), backend, None):
        column = Column(job.workflow, job.workflow_name, job.job_name)
        jobs_of.setdefault(job.delivery, {})[column] = job
    columns = sorted({column for jobs in jobs_of.values() for column in jobs}, key=_column_order)
    shown = columns[:_MOST_COLUMNS]
    return Matrix(
        columns=tuple(shown),
        columns_left_out=len(columns) - len(shown),
        rows=tuple(_matrix_row(line, jobs_of.get(line.delivery or "", {}), shown) for line in lines),
    )


def _column_order(column: Column) -> tuple[str, str, str]:
    return column.workflow_name.lower(), column.workflow, column.job_name.lower()


def _matrix_row(line: CommitLine, jobs: Mapping[Column, JobCell], columns: Sequence[Column]) -> MatrixRow:
    return MatrixRow(
        key=line.sha,
        event="push",
        action=None,
        number=line.number,
        head_sha=line.sha,
        delivery=line.delivery or "",
        at=line.pushed_at,
        title=line.title,
        author=line.author,
        ref=None,
        superseded=False,
        test=False,
        dispatch=None,
        cells=tuple(jobs.get(column) for column in columns),
    )
