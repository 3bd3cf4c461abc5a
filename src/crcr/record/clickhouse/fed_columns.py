"""Which columns of the facts ClickHouse is told; neither bodies nor what a report quotes of failed tests."""

from crcr.record.schema.core import dispatches, jobs
from crcr.record.schema.statistics import ingested

_RESULT = (
    *("upstream", "downstream", "delivery", "workflow_name", "run_id", "attempt", "job_name", "event"),
    *("number", "head_sha", "level", "state", "conclusion", "disputed_conclusion", "expected", "ended_as"),
    *("completed_at", "queue_s", "execution_s", "url"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
_JOB = (
    *("workflow", "in_progress_at", "first_conclusion", "verification"),
    *("late", "disputed", "superseded", "unsigned"),
)
_DISPATCH = (
    *("upstream", "downstream", "delivery", "event", "number", "head_sha", "level", "test"),
    *("created_at", "sent_at", "delay_s"),
)

JOB_FACTS = tuple(jobs.c[name] for name in (*_RESULT, *_JOB))
DISPATCH_FACTS = tuple(dispatches.c[name] for name in _DISPATCH)
INGESTED_FACTS = tuple(
    ingested.c[name] for name in (*_RESULT, "check_run", "started_at", "seen_at", "origin")
)
