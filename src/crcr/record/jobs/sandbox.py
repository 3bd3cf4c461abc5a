"""The sandbox: reports of repositories that are on no allowlist, in a table of their own.

Nothing else is written or read for them: no dispatch, run, sum, check, effect or live change. There are at most `MOST`
rows for all repositories together, the oldest are deleted first, and none is older than `KEPT_FOR`. Links are not kept,
nor failed tests of a private repository.
"""

import json
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.jobs.judge import workflow_key
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.jobs.sandbox import KnownSandboxJob, SandboxOutcome, judge_sandbox_report
from crcr.decide.model import Conclusion, JobState, RepoName
from crcr.decide.oidc.identity import Identity
from crcr.errors import NoAllowlist
from crcr.record.jobs.refusals import cut
from crcr.record.schema.joining import sandbox_jobs
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.visibility import AllowlistReader

MOST = 10_000
KEPT_FOR = timedelta(hours=48)
_FORGOTTEN_AT_ONCE = 500
_MOST_TESTS = 20
_LONGEST_NAME = 200
_LONGEST_MESSAGE = 500

_KEY = (
    "repository_id = :repository_id AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt"
    " AND job_name = :job_name"
)
_JOB = Statement(text(f"SELECT state, conclusion FROM sandbox_jobs WHERE {_KEY}"))  # noqa: S608  our own words
_OPEN = Statement(
    inserting(
        sandbox_jobs,
        *("repository_id", "workflow", "run_id", "attempt", "job_name", "name", "private", "event_type"),
        *("workflow_name", "state", "late", "in_progress_at", "reported_at"),
    ).on_conflict_do_nothing()
)
_CLOSE = Statement(
    text(
        "UPDATE sandbox_jobs SET state = :state, conclusion = :conclusion, completed_at = :at, reported_at = :at,"  # noqa: S608
        " tests_passed = :passed, tests_failed = :failed, tests_skipped = :skipped, tests_total = :total,"
        " private = CASE WHEN :private = 1 THEN 1 ELSE private END,"
        f" failed_tests = :failed_tests, failed_tests_cut = :cut WHERE {_KEY} AND state <> :state"
    )
)
_COUNT = Statement(text("SELECT count(*) AS number FROM sandbox_jobs WHERE reported_at > :since"))
_MAKE_ROOM = Statement(
    text(
        "DELETE FROM sandbox_jobs WHERE (repository_id, workflow, run_id, attempt, job_name) IN"
        " (SELECT repository_id, workflow, run_id, attempt, job_name FROM sandbox_jobs WHERE reported_at > :since"
        " ORDER BY reported_at LIMIT :excess)"
    )
)
FORGET_SANDBOX = Statement(
    text(
        "DELETE FROM sandbox_jobs WHERE (repository_id, workflow, run_id, attempt, job_name) IN"
        " (SELECT repository_id, workflow, run_id, attempt, job_name FROM sandbox_jobs WHERE reported_at <= :before"
        " ORDER BY reported_at LIMIT :most)"
    )
)


class SandboxJobs:
    """Records the reports that `receive.callback.sandbox` accepts."""

    def __init__(
        self,
        database: Database,
        lists: AllowlistReader,
        upstreams: tuple[RepoName, ...],
        *,
        most: int = MOST,
    ) -> None:
        self._database = database
        self._lists = lists
        self._upstreams = upstreams
        self._most = most

    async def is_listed(self, caller: RepoName) -> bool:
        """Whether any allowlist in force names the caller: its reports do not go to the sandbox then."""

        async def unit(tx: Tx) -> bool:
            for upstream in self._upstreams:
                try:
                    allowlist = await self._lists.in_force(tx, upstream)
                except NoAllowlist:
                    continue
                if allowlist.find(caller) is not None:
                    return True
            return False

        return await self._database.quick_read(unit)

    async def take(self, report: Report, identity: Identity, now: datetime) -> SandboxOutcome:
        """Judge and record in one transaction: of simultaneous reports one is applied, the others repeat it."""
        if identity.repository_id is None:
            raise ValueError("the sandbox takes reports of repositories whose id is proved")
        key = {
            "repository_id": identity.repository_id,
            "workflow": workflow_key(identity, report),
            "run_id": report.run_id,
            "attempt": report.run_attempt,
            "job_name": report.job_name,
        }

        async def unit(tx: Tx) -> SandboxOutcome:
            await tx.run(FORGET_SANDBOX, before=to_us(now - KEPT_FOR), most=_FORGOTTEN_AT_ONCE)
            known_job = await _read_job(tx, key)
            outcome = judge_sandbox_report(report, identity, known_job)
            if not isinstance(outcome, JobState):
                return outcome
            if known_job is None:
                await tx.run(_OPEN, **key, **_open_columns(report, identity, now))
            if report.status is ReportStatus.COMPLETED:
                await tx.run(_CLOSE, **key, **_close_columns(report, identity, now))
            if known_job is None:
                await self._make_room(tx, now)
            return outcome

        return await self._database.write(unit)

    async def _make_room(self, tx: Tx, now: datetime) -> None:
        since = to_us(now - KEPT_FOR)
        counted = await tx.one(_COUNT, since=since)
        excess = (counted["number"] if counted else 0) - self._most
        if excess > 0:
            await tx.run(_MAKE_ROOM, since=since, excess=excess)


async def _read_job(tx: Tx, key: dict[str, Any]) -> KnownSandboxJob | None:
    row = await tx.one(_JOB, **key)
    if row is None:
        return None
    conclusion = row["conclusion"]
    return KnownSandboxJob(JobState(row["state"]), Conclusion(conclusion) if conclusion is not None else None)


def _open_columns(report: Report, identity: Identity, now: datetime) -> dict[str, Any]:
    return {
        "name": identity.repository.full_name,
        "private": int(identity.private),
        "event_type": report.event_type,
        "workflow_name": report.workflow_name,
        "state": JobState.IN_PROGRESS.value,
        "late": int(report.late),
        "in_progress_at": to_us(now),
        "reported_at": to_us(now),
    }


def _close_columns(report: Report, identity: Identity, now: datetime) -> dict[str, Any]:
    tests = report.tests
    listed_tests = () if identity.private else report.failed_tests[:_MOST_TESTS]
    cut_tests = [
        {
            "name": cut(test.name, _LONGEST_NAME),
            "file": cut(test.file, _LONGEST_NAME),
            "message": cut(test.message, _LONGEST_MESSAGE),
        }
        for test in listed_tests
    ]
    return {
        "state": JobState.COMPLETED.value,
        "private": int(identity.private),
        "conclusion": (report.conclusion or Conclusion.NONE).value,
        "at": to_us(now),
        "passed": tests.passed if tests else None,
        "failed": tests.failed if tests else None,
        "skipped": tests.skipped if tests else None,
        "total": tests.total if tests else None,
        "failed_tests": json.dumps(cut_tests) if cut_tests else None,
        "cut": report.failed_tests_cut + len(report.failed_tests) - len(cut_tests),
    }
