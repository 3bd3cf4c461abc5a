"""Jobs in their table: opened, closed, disputed, checked, timed out; each write guarded by the state it starts from.

`outcomes` is their only caller: a write of a state or conclusion is followed by its forward.

`trusted` has values that the relay knows or measured, `untrusted` is the report's own body. They are stored and forwarded
separately, and no decision reads the second.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, case, func, or_, select, update

from crcr.decide.checks.commit import Verification
from crcr.decide.checks.verification import JobVerification, SilentEnd
from crcr.decide.jobs.forwarding import job_started_at
from crcr.decide.jobs.ingested import plausible_time
from crcr.decide.jobs.judge import CloseJob, DisputeJob, OpenJob
from crcr.decide.jobs.report import Report
from crcr.decide.model import Conclusion, JobState, Level
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.row_dataclass import row_dataclass
from crcr.decide.statistics.figures import EndedAs
from crcr.record.failures.recorder import FailureRecorder
from crcr.record.jobs.forwards import Forwards
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_ENCODE = msgspec.json.Encoder().encode
_KEY_COLUMNS = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")
BY_KEY = and_(*(jobs.c[name] == bindparam(name) for name in _KEY_COLUMNS))
JOBS_OF_RUN = Statement(
    select(*(jobs.c[name] for name in _KEY_COLUMNS)).where(
        *(jobs.c[name] == bindparam(name) for name in _KEY_COLUMNS if name not in {"attempt", "job_name"})
    )
)
_RESULT = (
    *(
        "conclusion",
        "first_conclusion",
        "closed_by",
        "completed_at",
        "execution_s",
        "tests_passed",
        "tests_failed",
        "tests_skipped",
        "tests_total",
    ),
    *("failed_tests", "failed_tests_cut", "log_excerpt", "trusted", "untrusted"),
)
_FROM_START = ("url", "artifact_url", "check_run_text", "environment")
"""Columns that keep the values of the in_progress report where the completed one has none."""
_OPEN = Statement(
    inserting(
        jobs,
        *("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name", "reported_name"),
        *(
            "state",
            "late",
            "late_start",
            "superseded",
            "unsigned",
            "opened_by",
            "level",
            "event",
            "number",
            "head_sha",
        ),
        *(
            "workflow_name",
            "url",
            "artifact_url",
            "check_run_text",
            "environment",
            "in_progress_at",
            "started_at",
            "silent_at",
        ),
        *("queue_s", "expected", "trusted", "untrusted"),
    ).on_conflict_do_nothing()
)
_SELF_REPORTED = Statement(update(jobs).where(BY_KEY).values(verification=Verification.SELF_REPORTED.value))
_NEW_START = bindparam("new_started_at", type_=jobs.c.started_at.type)
_CLOSE = Statement(
    update(jobs)
    .where(BY_KEY, jobs.c.state != "completed")
    .values(
        state="completed",
        late=case((bindparam("is_late") == 1, 1), else_=jobs.c.late),
        ended_as=func.coalesce(bindparam("new_ended_as"), jobs.c.ended_as),
        # The step that reports an end may have begun after its job: the earlier of two starts is the job's.
        started_at=case(
            (jobs.c.started_at > _NEW_START, _NEW_START), else_=func.coalesce(jobs.c.started_at, _NEW_START)
        ),
        **{name: bindparam(f"new_{name}") for name in _RESULT},
        **{name: func.coalesce(bindparam(f"new_{name}"), jobs.c[name]) for name in _FROM_START},
    )
)
_DISPUTE = Statement(
    update(jobs)
    .where(
        BY_KEY,
        or_(
            jobs.c.disputed == 0,
            jobs.c.conclusion != bindparam("counts"),
            jobs.c.disputed_conclusion != bindparam("claimed"),
        ),
    )
    .values(disputed=1, conclusion=bindparam("counts"), disputed_conclusion=bindparam("claimed"))
)
_TIME_OUT = Statement(
    update(jobs)
    .where(BY_KEY, jobs.c.state == "in_progress")
    .values(state=bindparam("becomes"), swept_at=bindparam("at"))
)
_VERIFY = Statement(
    update(jobs)
    .where(BY_KEY, jobs.c.state == "completed")
    .values(
        verification=bindparam("found"),
        github_conclusion=bindparam("said"),
        conclusion=bindparam("counts"),
        disputed=case((bindparam("differs") == 1, 1), else_=jobs.c.disputed),
    )
)
_END = Statement(
    update(jobs)
    .where(BY_KEY, jobs.c.state != "completed")
    .values(
        state=bindparam("becomes"),
        conclusion=bindparam("counts"),
        first_conclusion=bindparam("counts"),
        github_conclusion=bindparam("said"),
        verification=bindparam("found"),
        completed_at=bindparam("ended_at"),
        swept_at=bindparam("at"),
    )
)


@row_dataclass(frozen=True, slots=True)
class JobRow:
    """A job's key, and the recorded facts that its row repeats for the pages."""

    key: dict[str, Any]
    dispatch: Row
    identity: Identity
    expected: Conclusion | None = None

    def trusted(self, queue_s: float | None, execution_s: float | None) -> str:
        facts = {
            "verified_repo": self.identity.repository.full_name,
            "downstream_repo_level": Level(self.dispatch["level"]).name,
            "ci_metrics": {"queue_time": queue_s, "execution_time": execution_s},
        }
        return _ENCODE(facts).decode()


async def open_job(tx: Tx, row: JobRow, report: Report, outcome: OpenJob, now: datetime) -> JobRow:
    opened = {
        **row.key,
        "reported_name": report.job_name,
        "state": "in_progress",
        "late": int(outcome.late),
        "late_start": int(outcome.late),
        "superseded": int(outcome.superseded),
        "unsigned": int(outcome.unsigned),
        "opened_by": row.identity.check_run_id,
        "level": row.dispatch["level"],
        "event": row.dispatch["event"],
        "number": row.dispatch["number"],
        "head_sha": row.dispatch["head_sha"],
        "workflow_name": report.workflow_name,
        "url": report.url,
        "artifact_url": report.artifact_url,
        "check_run_text": report.check_run_text,
        "environment": report.environment,
        "in_progress_at": to_us(now),
        "started_at": to_us(job_started_at(report.started_at, now)),
        "silent_at": to_us(outcome.silent_at),
        "queue_s": outcome.queue_s,
        "expected": row.expected.value if row.expected else None,
        "trusted": row.trusted(outcome.queue_s, None),
        "untrusted": report.untrusted,
    }
    await tx.many(_OPEN, [opened])
    if row.identity.kind is not IssuerKind.GITHUB:
        await tx.run(_SELF_REPORTED, **row.key)
    return row


async def close_job(
    tx: Tx, row: JobRow, report: Report, outcome: CloseJob, now: datetime, *, ended: EndedAs | None = None
) -> JobRow:
    """`ended` is where the caller counts it, when it does so at once."""
    tests, started = report.tests, plausible_time(report.started_at, now)
    closed = {
        **row.key,
        "is_late": int(outcome.late),
        "new_ended_as": ended.value if ended else None,
        "new_conclusion": outcome.conclusion.value,
        "new_first_conclusion": outcome.conclusion.value,
        "new_closed_by": row.identity.check_run_id,
        "new_completed_at": to_us(now),
        "new_execution_s": outcome.execution_s,
        "new_url": report.url,
        "new_artifact_url": report.artifact_url,
        "new_check_run_text": report.check_run_text,
        "new_environment": report.environment,
        "new_started_at": to_us(started) if started else None,
        "new_tests_passed": tests.passed if tests else None,
        "new_tests_failed": tests.failed if tests else None,
        "new_tests_skipped": tests.skipped if tests else None,
        "new_tests_total": tests.total if tests else None,
        "new_failed_tests": failed_tests_text(report),
        "new_failed_tests_cut": report.failed_tests_cut,
        "new_log_excerpt": log_excerpt_text(report),
        "new_trusted": row.trusted(outcome.queue_s, outcome.execution_s),
        "new_untrusted": report.untrusted,
    }
    await tx.many(_CLOSE, [closed])
    return row


async def dispute_job(tx: Tx, row: JobRow, dispute: DisputeJob) -> bool:
    """Record the dispute; False when just this claim is on record."""
    changed = await tx.run(_DISPUTE, **row.key, counts=dispute.counts.value, claimed=dispute.claimed.value)
    return bool(changed)


async def time_out_job(tx: Tx, key: Mapping[str, Any], state: JobState, now: datetime) -> None:
    await tx.run(_TIME_OUT, **key, becomes=state.value, at=to_us(now))


async def verify_job(tx: Tx, key: Mapping[str, Any], finding: JobVerification, counts: Conclusion) -> None:
    """Write GitHub's view beside a result; `counts` is the conclusion that holds now."""
    await tx.run(
        _VERIFY,
        **key,
        found=finding.verification.value,
        said=finding.github.value if finding.github else None,
        counts=counts.value,
        differs=int(finding.verification is Verification.DISPUTED),
    )


async def end_job(
    tx: Tx,
    key: Mapping[str, Any],
    end: SilentEnd,
    state: JobState,
    *,
    ended_at: datetime,
    now: datetime,
) -> None:
    """End a silent job with GitHub's conclusion; without one it has timed out."""
    await tx.run(
        _END,
        **key,
        becomes=state.value,
        counts=end.conclusion.value if end.conclusion else None,
        said=end.github.value if end.github else None,
        found=(Verification.CONFIRMED if end.conclusion else Verification.UNCHECKED).value,
        ended_at=to_us(ended_at) if end.conclusion else None,
        at=to_us(now),
    )


def failed_tests_text(report: Report) -> str | None:
    if not report.failed_tests:
        return None
    return json.dumps([{"name": t.name, "file": t.file, "message": t.message} for t in report.failed_tests])


def log_excerpt_text(report: Report) -> str | None:
    return _ENCODE(report.log_excerpt).decode() if report.log_excerpt else None


# No other module calls the functions above that write a job's state or conclusion (tests/test_architecture.py): each write
# goes through `JobOutcomes`, which adds its forward in the same transaction.


class JobOutcomes:
    """Writes the outcomes of jobs, each with its forward to another HUD."""

    def __init__(self, forwards: Forwards, failures: FailureRecorder | None = None) -> None:
        """Without a recorder of failures there are no verdicts."""
        self._forwards = forwards
        self._failures = failures

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
        """`ended` is the category under which the caller counts the job in the same transaction, if it does."""
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
        """Record the dispute; False when this very claim is recorded already."""
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
        """End a silent job with GitHub's conclusion."""
        await end_job(tx, key, end, state, ended_at=ended_at, now=now)
        await self._forwards.add(tx, key, now)

    async def follow(self, tx: Tx, key: Mapping[str, Any], now: datetime) -> None:
        """Record and judge what a result means for failures; called after the result was counted."""
        if self._failures is not None:
            await self._failures.follow(tx, key, now)

    async def take_off(self, tx: Tx, run: Mapping[str, Any], now: datetime) -> None:
        """A run turned out to belong to another delivery: its results no longer count for this one."""
        for job in await tx.all(JOBS_OF_RUN, **run):
            await self._forwards.add(tx, job, now)
