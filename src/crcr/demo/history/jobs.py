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
_OPERATORS = (
    "addmm", "scatter_add", "histc", "flatten", "index_put", "cumsum", "conv2d", "layer_norm", "softmax", "einsum",
    "topk", "unique", "roll", "logsumexp", "gather", "pad", "svd", "cdist", "embedding_bag", "nll_loss",
)  # fmt: skip
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
        queue_s = round(self._queue(run), 6)
        began = run.sent_at + int(queue_s * 1e6)
        if began >= self.until:
            return None
        self._check += 1
        generated = _Made(run, job, attempt, str(self._check), queue_s, began)
        generated.url = f"{self.links}/{run.backend.name}/actions/runs/{run.run_id}/job/{generated.check}"
        self._live(generated, skipped=skipped)
        self._stop(generated)
        if generated.told_once and not generated.is_over:
            return None
        if generated.is_over and job.tests and generated.conclusion in {"success", "failure"}:
            self._test(generated)
        return _row_of(generated, self.upstream)

    def _queue(self, run: GeneratedRun) -> float:
        if run.backend.queue_range_s is not None:
            return self.chance.uniform(*run.backend.queue_range_s)
        line = run.backend.queue_s * (0.5 + busyness(run.sent_at))
        return line * self.chance.lognormvariate(0, run.backend.queue_spread)

    def _duration(self, job: JobCharacter) -> float:
        if job.duration_s is not None:
            return self.chance.uniform(*job.duration_s)
        return job.typical_s * self.chance.lognormvariate(0, job.spread)

    def _live(self, generated: "_Made", *, skipped: bool) -> None:
        """Set the outcome and the duration."""
        job, luck = generated.job, self.chance.random()
        generated.execution_s = self._duration(job)
        if job.steady:
            if generated.run.happened.pull is None:
                return
            luck = max(luck, _SILENT)
        if skipped:
            generated.conclusion, generated.execution_s = "skipped", 0.5
        elif luck < _TIMED_OUT:
            generated.conclusion = "timed_out"
            generated.execution_s = (job.duration_s[1] if job.duration_s else job.typical_s) * 4
        elif luck < _SILENT:
            generated.state = "timed_out"
        elif luck < _LATE:
            generated.late = 1
        elif luck < _DISPUTED:
            generated.conclusion, generated.disputed = "failure", 1
        elif self._fails(generated):
            generated.conclusion = "failure"
            if job.duration_s is None:
                generated.execution_s *= 0.2 + 0.8 * self.chance.random()
        backend = generated.run.backend
        if backend.expects:
            generated.expected = "failure" if job is backend.jobs[-1] else "success"
            if generated.conclusion != "skipped" and luck > _DISPUTED:
                generated.conclusion = generated.expected

    def _stop(self, generated: "_Made") -> None:
        """Set the end: finished, cancelled by a newer commit, or still running."""
        waited = SILENT_AFTER_US if generated.late else 0
        generated.ended = generated.began + waited + int(generated.execution_s * 1e6)
        stale = generated.run.happened.superseded_at
        if (
            stale is not None
            and generated.run.backend.cancels
            and generated.began < stale < generated.ended
            and not generated.late
        ):
            generated.conclusion, generated.ended = "cancelled", stale + 5_000_000
            generated.execution_s = (generated.ended - generated.began) / 1e6
        if generated.state == "timed_out" and generated.silent_at >= self.until:
            generated.state = "completed"
        if generated.state == "completed" and generated.ended >= self.until:
            if self.all_end:
                generated.ended = self.until - 1
                generated.execution_s = (generated.ended - generated.began) / 1e6
            else:
                generated.state = "in_progress"

    def _fails(self, generated: "_Made") -> bool:
        job, chance = generated.job, self.chance.random()
        if chance < job.flaky:
            return True
        if job.is_broken(generated.began):
            return chance < _BROKEN
        return generated.run.happened.breaks and generated.attempt == 1 and chance < _AT_FAULT

    def _test(self, generated: "_Made") -> None:
        job = generated.job
        failed = 1 + int(self.chance.random() * 3) if generated.conclusion == "failure" else 0
        generated.tests = (job.tests - failed - job.tests // 20, failed, job.tests // 20, job.tests)
        if failed:
            file, message = _cause(generated)
            tests = self._failing_tests(job, file, failed)
            generated.failures = json.dumps(
                [{"name": name, "file": file, "message": message} for name, file in tests]
            )

    def _failing_tests(self, job: JobCharacter, file: str, number: int) -> list[tuple[str, str]]:
        if job.failing_tests:
            return self.chance.sample(job.failing_tests, min(number, len(job.failing_tests)))
        suite = file[5:-3].replace("/", ".")
        first = self.chance.randrange(500)
        return [(f"{suite}.TestAll.test_{first + index}", file) for index in range(number)]


def _cause(generated: "_Made") -> tuple[str, str]:
    """Return file and message of the failure: the job's own, or the same at all backends for a broken change."""
    job, happened = generated.job, generated.run.happened
    if not happened.breaks or job.is_broken(generated.began):
        return job.file, job.message
    operator = _OPERATORS[int(happened.head_sha[:8], 16) % len(_OPERATORS)]
    return "test/test_ops.py", f"NotImplementedError: no kernel for aten::{operator}.out on this backend"


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


def _row_of(generated: _Made, upstream: str) -> Row:
    run, job, over, check = generated.run, generated.job, generated.is_over, generated.check
    backend, happened = run.backend, run.happened
    conclusion = generated.conclusion if over else None
    own = generated.told_once
    known_s = round(generated.execution_s, 6) if over and not own else None
    queue_s, began, late = (
        (None, generated.ended, 0) if own else (generated.queue_s, generated.began, generated.late)
    )
    silent = generated.state == "timed_out"
    verified = backend.level >= 3 and not own
    trusted = (
        f'{{"verified_repo":"{backend.name}","downstream_repo_level":"L{backend.level}","ci_metrics":'
        f'{{"queue_time":{"null" if queue_s is None else queue_s},'
        f'"execution_time":{"null" if known_s is None else known_s}}}}}'
    )
    return [
        happened.guid, upstream, backend.key, backend.workflow, str(run.run_id), generated.attempt, job.name, job.name,
        generated.state, conclusion, "success" if generated.disputed and over else conclusion, "success" if generated.disputed and over else None,
        late, generated.disputed if over else 0, int(run.superseded), check, check if over else None, backend.level,
        happened.event, happened.pull.number if happened.pull else None, happened.head_sha or happened.guid,
        backend.workflow_name, generated.url, check, None, began, generated.ended if over else None, generated.silent_at,
        generated.silent_at if silent or late else None, "confirmed" if verified and over else "unchecked",
        conclusion if verified else None, queue_s, known_s, *generated.tests, generated.failures, generated.expected,
        _counts_as(generated), trusted, _body(generated),
    ]  # fmt: skip


def _counts_as(generated: _Made) -> str | None:
    if generated.state == "in_progress":
        return None
    if generated.run.superseded or generated.run.happened.superseded_at is not None:
        return "superseded"
    if generated.state == "timed_out":
        return "silent"
    if generated.expected is None or generated.conclusion == "timed_out":
        return _COUNTS_AS[generated.conclusion]
    return "success" if generated.conclusion == generated.expected else "failure"


def _body(generated: _Made) -> bytes:
    """Return the body that the job's reporter would send."""
    run, over = generated.run, generated.is_over
    ends = f',"conclusion":"{generated.conclusion}","completed_at":"{_utc(generated.ended)}"' if over else ""
    passed, failed, skipped, total = generated.tests
    numbers = f'"passed":{passed},"failed":{failed},"skipped":{skipped},"total":{total}'
    tests = f',"test_results":{{{numbers}}}' if total else ""
    failures = f',"failed_tests":{generated.failures}' if generated.failures else ""
    return (
        f'{{"event_type":"{run.happened.event}","delivery_id":"{run.happened.guid}","workflow":{{'
        f'"schema_version":"1","status":"{"completed" if over else "in_progress"}",'
        f'"name":"{run.backend.workflow_name}","url":"{generated.url}","run_id":"{run.run_id}",'
        f'"run_attempt":"{generated.attempt}","job_name":"{generated.job.name}","check_run_id":"{generated.check}",'
        f'"started_at":"{_utc(generated.began)}"{ends}{tests}{failures}}}}}'
    ).encode()


def _utc(at: int) -> str:
    day, rest = divmod(at, DAY_US)
    seconds = rest // 1_000_000
    return f"{_date(day)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


@cache
def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
