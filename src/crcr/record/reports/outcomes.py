"""All writes of a job's state or conclusion, each followed by its forward in the same transaction.

No other module imports the writes of `job_rows` (tests/test_architecture.py), so every outcome change is forwarded.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from crcr.decide.checks.verification import JobVerification, SilentEnd
from crcr.decide.model import Conclusion, JobState
from crcr.decide.report.judge import CloseJob, DisputeJob, OpenJob
from crcr.decide.report.report import Report
from crcr.decide.statistics.figures import EndedAs
from crcr.record.reports.forwards import Forwards
from crcr.record.reports.jobs import (
    JOBS_OF_RUN,
    JobRow,
    close_job,
    dispute_job,
    end_job,
    open_job,
    time_out_job,
    verify_job,
)
from crcr.record.store.database import Tx


class Outcomes:
    """Writes outcomes, and adds their forwards."""

    def __init__(self, forwards: Forwards) -> None:
        self._forwards = forwards

    async def open(
        self, tx: Tx, row: JobRow, report: Report, outcome: OpenJob, *, body: bytes, now: datetime
    ) -> None:
        await open_job(tx, row, report, outcome, now)
        await self._forwards.add(tx, row.key, now, body)

    async def close(
        self,
        tx: Tx,
        row: JobRow,
        report: Report,
        outcome: CloseJob,
        *,
        body: bytes,
        now: datetime,
        ended: EndedAs | None,
    ) -> None:
        """`ended` is where the caller counts it, when it does so at once."""
        await close_job(tx, row, report, outcome, now, ended=ended)
        await self._forwards.add(tx, row.key, now, body)

    async def open_and_close(
        self,
        tx: Tx,
        row: JobRow,
        report: Report,
        *,
        opened: OpenJob,
        closed: CloseJob,
        body: bytes,
        now: datetime,
    ) -> None:
        """A self-report is a start and a result at once: one outcome, and one forward."""
        await open_job(tx, row, report, opened, now)
        await close_job(tx, row, report, closed, now)
        await self._forwards.add(tx, row.key, now, body)

    async def dispute(self, tx: Tx, row: JobRow, dispute: DisputeJob, now: datetime) -> bool:
        """Record the dispute; False when just this claim is on record."""
        if not await dispute_job(tx, row, dispute):
            return False
        await self._forwards.add(tx, row.key, now)
        return True

    async def time_out(self, tx: Tx, key: Mapping[str, Any], state: JobState, now: datetime) -> None:
        await time_out_job(tx, key, state, now)
        await self._forwards.add(tx, key, now)

    async def verify(
        self, tx: Tx, key: Mapping[str, Any], finding: JobVerification, counts: Conclusion, now: datetime
    ) -> None:
        """Write GitHub's view beside a result; `counts` is the conclusion that holds now."""
        await verify_job(tx, key, finding, counts)
        await self._forwards.add(tx, key, now)

    async def end(
        self,
        tx: Tx,
        key: Mapping[str, Any],
        end: SilentEnd,
        state: JobState,
        *,
        ended_at: datetime,
        now: datetime,
    ) -> None:
        """End a silent job as GitHub says."""
        await end_job(tx, key, end, state, ended_at=ended_at, now=now)
        await self._forwards.add(tx, key, now)

    async def take_off(self, tx: Tx, run: Mapping[str, Any], now: datetime) -> None:
        """A run was found to answer another delivery: its results count no more for this one."""
        for job in await tx.all(JOBS_OF_RUN, **run):
            await self._forwards.add(tx, job, now)
