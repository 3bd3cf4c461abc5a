"""`record_failed_job`: a failed nightly job with one failed test, or with a log only, written as the relay records it."""

import json
from datetime import datetime
from functools import partial
from typing import Any

from crcr.decide.failures.fingerprint import fingerprint_failure
from crcr.decide.failures.history import FailedAs
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import RepoName
from crcr.record.failures.failure_rows import FailedJob, add_failure
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from support.stores.databases import CORE

SHA = "a" * 40
_RESULT: dict[str, Any] = {
    "reported_name": "build",
    "state": "completed",
    "conclusion": "failure",
    "ended_as": "failure",
    "level": 2,
    "event": "nightly",
    "head_sha": SHA,
    "workflow_name": "CI",
    "trusted": "{}",
    "untrusted": b"{}",
}
_TIMES = ("in_progress_at", "completed_at", "silent_at")
_KEY = ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name")
_ADD_JOB = Statement(inserting(jobs, *_KEY, *_RESULT, *_TIMES, "failed_tests", "log_excerpt"))


def fingerprint_of(message: str) -> str:
    return str(fingerprint_failure((FailedTest("test_op", None, message),)).fingerprint)


async def record_failed_job(
    database: Database,
    delivery: str,
    message: str,
    *,
    at: datetime,
    upstream: RepoName = CORE,
    downstream: str = "org/one",
    with_result: bool = True,
    in_log: bool = False,
) -> None:
    """Record the failure, and with it the job's own row unless that is to be missing; `in_log`: no test has the message."""
    names = (delivery, upstream.key, downstream, "ci.yml", "1", 1, "build")
    key: dict[str, Any] = dict(zip(_KEY, names, strict=True))
    details = {
        "failed_tests": None if in_log else json.dumps([{"name": "test_op", "message": message}]),
        "log_excerpt": json.dumps({"first_error": message, "tail": None}) if in_log else None,
    }
    row = {**key, **_RESULT, **dict.fromkeys(_TIMES, to_us(at)), **details}
    if with_result:
        await database.write(lambda tx: tx.run(_ADD_JOB, **row))
    failed = FailedJob(
        key=key,
        event="nightly",
        number=None,
        head_sha=SHA,
        ended=FailedAs.FAILURE,
        tests=() if in_log else (FailedTest("test_op", None, message),),
        log_excerpt=LogExcerpt(message, None) if in_log else None,
        at=at,
    )
    await database.write(partial(add_failure, job=failed))
