"""The jobs of one generated run as rows: attempts, failures with their tests, cancels, skips, silence, disputes.

Written for speed, because millions of rows are needed: one call makes a whole run, and computes shared values once.
"""

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from crcr.demo.history.backends import DAY_US, HOUR_US, BackendCharacter, JobCharacter
from crcr.demo.history.events import GeneratedEvent, busyness

COLUMNS = (
    "delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name", "reported_name", "state",
    "conclusion", "first_conclusion", "disputed_conclusion", "late", "disputed", "superseded", "opened_by", "closed_by",
    "level", "event", "number", "head_sha", "workflow_name", "url", "check_run_text", "environment", "in_progress_at",
    "completed_at", "silent_at", "swept_at", "verification", "github_conclusion", "queue_s", "execution_s",
    "tests_passed", "tests_failed", "tests_skipped", "tests_total", "failed_tests", "expected", "ended_as", "trusted",
    "untrusted",
)  # fmt: skip
ENDED_AS = COLUMNS.index("ended_as")
SILENT_AFTER_US = 6 * HOUR_US
_RERUN = 0.3
_BROKEN = 0.97
_AT_FAULT = 0.5
# Upper ends of the shares of jobs to which such things happen.
_TIMED_OUT, _SILENT, _LATE, _DISPUTED = 0.003, 0.005, 0.0055, 0.0058
_COUNTS_AS = {
    "success": "success",
    "failure": "failure",
    "timed_out": "timed_out",
    "cancelled": "other",
    "skipped": "other",
}

Row = list[Any]


@dataclass(frozen=True, slots=True)
class GeneratedRun:
    backend: BackendCharacter
    happened: GeneratedEvent
    run_id: int
    sent_at: int
    superseded: bool = False
    """A later run of the same workflow answers the same delivery."""


@dataclass(slots=True)
class JobWriter:
    upstream: str
    chance: random.Random
    links: str
    """Prefix of the job links."""
    until: int
    all_end: bool
    """Whether every job must have ended at the end."""
    _check: int = 48_100_000_000

    def rows(self, run: GeneratedRun) -> list[Row]:
        """Return all jobs of the run, and a second attempt of failed ones that were re-run."""
        chance = self.chance.random
        rows: list[Row] = []
        failed: list[tuple[JobCharacter, Row]] = []
        blocked = False
        for job in run.backend.jobs:
            row = self._row(run, job, attempt=1, skipped=blocked and not job.builds)
            if row is None:
                continue
            rows.append(row)
            if row[9] == "failure":
                failed.append((job, row))
                blocked = blocked or (job.builds and chance() < 0.3)
        if failed and not run.superseded and chance() < _RERUN:
            rows += self._again(run, failed)
        return rows

    def _again(self, run: GeneratedRun, failed: list[tuple[JobCharacter, Row]]) -> list[Row]:
        later = GeneratedRun(run.backend, run.happened, run.run_id, run.sent_at + HOUR_US + HOUR_US // 2)
        rows = []
        for job, before in failed:
            row = self._row(later, job, attempt=2, skipped=False)
            if row is not None:
                rows.append(row)
                if before[ENDED_AS] not in {None, "superseded"}:
                    before[ENDED_AS] = "earlier"
        return rows

    def _row(self, run: GeneratedRun, job: JobCharacter, *, attempt: int, skipped: bool) -> Row | None:
        line = run.backend.queue_s * (0.5 + busyness(run.sent_at))
        queue_s = round(line * self.chance.lognormvariate(0, run.backend.queue_spread), 6)
        began = run.sent_at + int(queue_s * 1e6)
        if began >= self.until:
            return None
        self._check += 1
        made = _Made(run, job, attempt, str(self._check), queue_s, began)
        made.url = f"{self.links}/{run.backend.name}/actions/runs/{run.run_id}/job/{made.check}"
        self._live(made, skipped=skipped)
        self._stop(made)
        if made.told_once and not made.is_over:
            return None
        if made.is_over and job.tests and made.conclusion in {"success", "failure"}:
            self._test(made)
        return _row_of(made, self.upstream)

    def _live(self, made: "_Made", *, skipped: bool) -> None:
        """Set the outcome and the duration."""
        job, luck = made.job, self.chance.random()
        made.execution_s = job.typical_s * self.chance.lognormvariate(0, job.spread)
        if skipped:
            made.conclusion, made.execution_s = "skipped", 0.5
        elif luck < _TIMED_OUT:
            made.conclusion, made.execution_s = "timed_out", job.typical_s * 4
        elif luck < _SILENT:
            made.state = "timed_out"
        elif luck < _LATE:
            made.late = 1
        elif luck < _DISPUTED:
            made.conclusion, made.disputed = "failure", 1
        elif self._fails(made):
            made.conclusion = "failure"
            made.execution_s *= 0.2 + 0.8 * self.chance.random()
        backend = made.run.backend
        if backend.expects:
            made.expected = "failure" if job is backend.jobs[-1] else "success"
            if made.conclusion != "skipped" and luck > _DISPUTED:
                made.conclusion = made.expected

    def _stop(self, made: "_Made") -> None:
        """Set the end: finished, cancelled by a newer commit, or still running."""
        waited = SILENT_AFTER_US if made.late else 0
        made.ended = made.began + waited + int(made.execution_s * 1e6)
        stale = made.run.happened.superseded_at
        if (
            stale is not None
            and made.run.backend.cancels
            and made.began < stale < made.ended
            and not made.late
        ):
            made.conclusion, made.ended = "cancelled", stale + 5_000_000
            made.execution_s = (made.ended - made.began) / 1e6
        if made.state == "timed_out" and made.silent_at >= self.until:
            made.state = "completed"
        if made.state == "completed" and made.ended >= self.until:
            if self.all_end:
                made.ended = self.until - 1
                made.execution_s = (made.ended - made.began) / 1e6
            else:
                made.state = "in_progress"

    def _fails(self, made: "_Made") -> bool:
        job, chance = made.job, self.chance.random()
        if chance < job.flaky:
            return True
        if any(begin <= made.began < end for begin, end in job.broken):
            return chance < _BROKEN
        return made.run.happened.breaks and made.attempt == 1 and chance < _AT_FAULT

    def _test(self, made: "_Made") -> None:
        job = made.job
        failed = 1 + int(self.chance.random() * 3) if made.conclusion == "failure" else 0
        made.tests = (job.tests - failed - job.tests // 20, failed, job.tests // 20, job.tests)
        if failed:
            suite = job.file[5:-3].replace("/", ".")
            first = self.chance.randrange(500)
            made.failures = json.dumps(
                [
                    {
                        "name": f"{suite}.TestAll.test_{first + place}",
                        "file": job.file,
                        "message": job.message,
                    }
                    for place in range(failed)
                ]
            )


@dataclass(slots=True)
class _Made:
    """One job while it is generated."""

    run: GeneratedRun
    job: JobCharacter
    attempt: int
    check: str
    queue_s: float
    began: int
    ended: int = 0
    execution_s: float = 0.0
    state: str = "completed"
    conclusion: str = "success"
    expected: str | None = None
    late: int = 0
    disputed: int = 0
    url: str = ""
    tests: tuple[int | None, ...] = (None, None, None, None)
    failures: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state == "completed"

    @property
    def told_once(self) -> bool:
        """A nightly is reported only at its end: its queue and run times are unknown."""
        return self.run.happened.event == "nightly"

    @property
    def silent_at(self) -> int:
        return self.began + SILENT_AFTER_US


def _row_of(made: _Made, upstream: str) -> Row:
    run, job, over, check = made.run, made.job, made.is_over, made.check
    backend, happened = run.backend, run.happened
    told = made.conclusion if over else None
    own = made.told_once
    known_s = round(made.execution_s, 6) if over and not own else None
    queue_s, began, late = (None, made.ended, 0) if own else (made.queue_s, made.began, made.late)
    silent = made.state == "timed_out"
    seen = backend.level >= 3 and not own
    trusted = (
        f'{{"verified_repo":"{backend.name}","downstream_repo_level":"L{backend.level}","ci_metrics":'
        f'{{"queue_time":{"null" if queue_s is None else queue_s},'
        f'"execution_time":{"null" if known_s is None else known_s}}}}}'
    )
    return [
        happened.guid, upstream, backend.key, backend.workflow, str(run.run_id), made.attempt, job.name, job.name,
        made.state, told, "success" if made.disputed and over else told, "success" if made.disputed and over else None,
        late, made.disputed if over else 0, int(run.superseded), check, check if over else None, backend.level,
        happened.event, happened.pull.number if happened.pull else None, happened.head_sha or happened.guid,
        backend.workflow_name, made.url, check, None, began, made.ended if over else None, made.silent_at,
        made.silent_at if silent or late else None, "confirmed" if seen and over else "unchecked",
        told if seen else None, queue_s, known_s, *made.tests, made.failures, made.expected,
        _counts_as(made), trusted, _body(made),
    ]  # fmt: skip


def _counts_as(made: _Made) -> str | None:
    if made.state == "in_progress":
        return None
    if made.run.superseded or made.run.happened.superseded_at is not None:
        return "superseded"
    if made.state == "timed_out":
        return "silent"
    if made.expected is None or made.conclusion == "timed_out":
        return _COUNTS_AS[made.conclusion]
    return "success" if made.conclusion == made.expected else "failure"


def _body(made: _Made) -> bytes:
    """Return the body that the job's reporter would send."""
    run, over = made.run, made.is_over
    ends = f',"conclusion":"{made.conclusion}","completed_at":"{_utc(made.ended)}"' if over else ""
    passed, failed, skipped, total = made.tests
    numbers = f'"passed":{passed},"failed":{failed},"skipped":{skipped},"total":{total}'
    tests = f',"test_results":{{{numbers}}}' if total else ""
    failures = f',"failed_tests":{made.failures}' if made.failures else ""
    return (
        f'{{"event_type":"{run.happened.event}","delivery_id":"{run.happened.guid}","workflow":{{'
        f'"schema_version":"1","status":"{"completed" if over else "in_progress"}",'
        f'"name":"{run.backend.workflow_name}","url":"{made.url}","run_id":"{run.run_id}",'
        f'"run_attempt":"{made.attempt}","job_name":"{made.job.name}","check_run_id":"{made.check}",'
        f'"started_at":"{_utc(made.began)}"{ends}{tests}{failures}}}}}'
    ).encode()


def _utc(at: int) -> str:
    day, rest = divmod(at, DAY_US)
    seconds = rest // 1_000_000
    return f"{_date(day)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


@cache
def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
