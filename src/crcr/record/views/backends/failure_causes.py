"""The failures of a backend's matrix: the first line of each, the newest by cause, and the newest one by one.

One query along `uq_failures_job` reads the recorded failures of the events that are shown; whole jobs are read for the few
that are listed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import text

from crcr.decide.failures.fingerprint import first_line
from crcr.decide.jobs.short_address import JobKeyParts
from crcr.decide.model import Conclusion
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind
from crcr.decide.views.backend import FailureCause, FailureLine, MatrixRow
from crcr.decide.views.overview import JobCell, JobView
from crcr.record.store.statement import Statement
from crcr.record.views.backends.backend_reader import BackendReader
from crcr.record.views.backends.ingested import add_ingested_failed_tests
from crcr.record.views.backends.jobs import read_job_with_tests
from crcr.record.views.failures.commit_failures import add_verdicts

_MOST_FAILURES = 10
_MOST_CAUSES = 10
_MOST_LINES = 2_000
_LINES = (
    "SELECT delivery, workflow, run_id, attempt, job_name, fingerprint, sample FROM failures WHERE delivery IN {deliveries}"
    " AND upstream = :upstream AND downstream = :downstream ORDER BY failure_id DESC LIMIT :most"
)
_FAILURE_LINES = Statement(
    text(_LINES.format(deliveries="(SELECT value FROM json_each(:deliveries))")),
    on_postgresql=text(
        _LINES.format(deliveries="(SELECT json_array_elements_text(CAST(:deliveries AS json)))")
    ),
)
_NO_LINE = FailureLine(None, None)


@dataclass(frozen=True, slots=True)
class FailedCells:
    """The failed jobs of a matrix, the newest event first; `counted` are those that still matter."""

    every: tuple[JobCell, ...]
    counted: tuple[JobCell, ...]

    @classmethod
    def from_rows(cls, rows: Iterable[MatrixRow]) -> "FailedCells":
        every: list[JobCell] = []
        counted: list[JobCell] = []
        for row in rows:
            failed = [cell for cell in row.cells if cell is not None and has_failed(cell)]
            every += failed
            counted += [] if row.superseded or row.test else failed
        return cls(tuple(every), tuple(counted))


def has_failed(cell: JobCell) -> bool:
    """A matrix has thousands of cells, and most of them passed: those are recognised without a look-up."""
    if cell.conclusion is Conclusion.SUCCESS and cell.expected is None:
        return False
    return cell.counted is CountedAs.FAILURE


async def read_failure_lines(reader: BackendReader, failed: FailedCells) -> Mapping[JobKeyParts, FailureLine]:
    """What the failed jobs say about their causes; nothing is recorded about those of other relays."""
    if reader.kind is ResultKind.INGESTED or not failed.every:
        return {}
    found = await reader.tx.all(
        _FAILURE_LINES,
        upstream=reader.upstream.key,
        downstream=failed.every[0].downstream.lower(),
        deliveries=json.dumps(sorted({cell.delivery for cell in failed.every})),
        most=_MOST_LINES,
    )
    return {
        (row["delivery"], row["workflow"], row["run_id"], row["attempt"], row["job_name"]): FailureLine(
            row["fingerprint"], row["sample"]
        )
        for row in found
    }


async def read_causes(
    reader: BackendReader, failed: FailedCells, lines: Mapping[JobKeyParts, FailureLine]
) -> tuple[FailureCause, ...]:
    """The failures that still matter by cause, each with its newest job."""
    groups: dict[tuple[str, str], list[JobCell]] = {}
    for cell in failed.counted:
        line = lines.get(_key_of(cell), _NO_LINE)
        group = (line.fingerprint, "") if line.fingerprint else (cell.workflow, cell.job_name)
        groups.setdefault(group, []).append(cell)
    newest = list(islice(groups.values(), _MOST_CAUSES))
    jobs = {_key_of(job): job for job in await _read_whole_jobs(reader, [cells[0] for cells in newest])}
    return tuple(
        _make_cause(jobs[_key_of(cells[0])], len(cells), lines)
        for cells in newest
        if _key_of(cells[0]) in jobs
    )


def _make_cause(newest: JobView, count: int, lines: Mapping[JobKeyParts, FailureLine]) -> FailureCause:
    line = lines.get(_key_of(newest), _NO_LINE)
    first_test = next(iter(newest.failed_tests), None)
    shown = line.line or (first_test and (first_line(first_test.message) or first_test.name)) or None
    return FailureCause(fingerprint=line.fingerprint, line=shown, count=count, newest=newest)


async def read_failures(reader: BackendReader, failed: FailedCells) -> tuple[JobView, ...]:
    """The newest failures that still matter, each with its first failed tests."""
    return await _read_whole_jobs(reader, failed.counted[:_MOST_FAILURES])


def _key_of(job: JobCell) -> JobKeyParts:
    return job.delivery, job.workflow, job.run_id, job.attempt, job.job_name


async def _read_whole_jobs(reader: BackendReader, cells: Iterable[JobCell]) -> tuple[JobView, ...]:
    whole = [await _read_failed_job(reader, cell) for cell in cells]
    jobs = [job for job in whole if job is not None]
    if reader.kind is ResultKind.INGESTED:
        return tuple(jobs)
    return await add_verdicts(reader.tx, reader.upstream, jobs)


async def _read_failed_job(reader: BackendReader, cell: JobCell) -> JobView | None:
    if reader.kind is ResultKind.INGESTED and isinstance(cell, JobView):
        return await add_ingested_failed_tests(reader.tx, reader.upstream, reader.visible, cell)
    return await read_job_with_tests(reader.tx, reader.upstream, reader.visible, cell)
