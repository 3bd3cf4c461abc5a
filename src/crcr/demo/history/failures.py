"""The failures of generated history: rows of failed jobs with fingerprints, groups and the order of the base's commits.

Only the end of the history has them, because verdicts look back that far. The generator knows the cause of each failure,
so it writes the verdict that the rules would give, without judging each one.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crcr.decide.failures.fingerprint import RULES, fingerprint_failure, name_tests, sample_messages
from crcr.decide.failures.history import TRUSTED_ASSOCIATIONS, FailedAs
from crcr.decide.failures.verdict import Confidence, VerdictKind, VerdictPolicy
from crcr.decide.jobs.report import FailedTest
from crcr.decide.statistics.window import result_kind
from crcr.demo.history.backends import JobCharacter
from crcr.demo.history.events import GeneratedEvent
from crcr.demo.history.jobs import COLUMNS, GeneratedRun

WINDOW_US = int(VerdictPolicy().window.total_seconds() * 1e6)
BASE_COLUMNS = ("sha", "upstream", "ref", "position", "before", "pushed_at")
FINGERPRINT_COLUMNS = ("fingerprint", "upstream", "failure_id")
FAILURE_COLUMNS = (
    "failure_id", "delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name", "kind", "event",
    "number", "head_sha", "base_ref", "built_on", "built_on_exact", "author", "trusted", "at", "ended", "fingerprint",
    "rules", "sample", "fingerprints", "passed_at", "verdict", "confidence", "sentence", "judged_at",
)  # fmt: skip
_REF = "main"
_AT = {name: COLUMNS.index(name) for name in COLUMNS}
_ADD_GROUP = (
    "INSERT INTO failure_groups (fingerprint, upstream, downstream, sample, number, first_at, last_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (fingerprint, upstream, downstream) DO UPDATE SET"
    " number = number + excluded.number, first_at = min(first_at, excluded.first_at),"
    " last_at = max(last_at, excluded.last_at)"
)
_ADD_TEST = (
    "INSERT INTO failed_tests (fingerprint, upstream, downstream, test, number, last_at) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (fingerprint, upstream, downstream, test) DO UPDATE SET number = number + excluded.number,"
    " last_at = max(last_at, excluded.last_at)"
)
_SENTENCES = {
    VerdictKind.NEW: "The base passed in the window and this failure is not known.",
    VerdictKind.PRE_EXISTING: "The base failed alike before this.",
    VerdictKind.FLAKY: "The same failure came and went elsewhere, without a change of code.",
    VerdictKind.INFRASTRUCTURE: "It timed out: there is no result about the change.",
    VerdictKind.MISSING: "It started and never reported its end.",
}
Row = Sequence[Any]


@dataclass(slots=True)
class _Group:
    sample: str
    first_at: int
    last_at: int
    number: int = 0

    def count(self, at: int) -> None:
        self.number += 1
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)


@dataclass(slots=True)
class FailureWriter:
    """Makes the rows of one upstream's failures; events must come in their order."""

    upstream: str
    since: int
    """Earlier failures get no rows."""
    next_id: int
    next_position: int
    _newest: str | None = None
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict)
    _tests: dict[tuple[str, str, str], _Group] = field(default_factory=dict)
    """By fingerprint, backend and name."""

    def place_push(self, happened: GeneratedEvent) -> Row | None:
        """Return the row of a pushed commit in the order of the base; None for other events and early ones."""
        if happened.event != "push" or happened.at < self.since:
            return None
        row = (happened.head_sha, self.upstream, _REF, self.next_position, self._newest, happened.at)
        self.next_position += 1
        self._newest = happened.head_sha
        return row

    def list_failures(self, run: GeneratedRun, jobs: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Return the failures among the jobs of a run, and the members of groups that they make."""
        failures: list[Row] = []
        members: list[Row] = []
        if run.superseded or run.sent_at < self.since:
            return failures, members
        for job in jobs:
            if (ended := _ended(job)) is not None:
                tests = _read_tests(job)
                failure = self._failure(run, job, ended, _find_pass(jobs, job), tests)
                failures.append(failure)
                members += self._join_groups(failure[0], run.backend.key, tests, _ended_at(job))
        return failures, members

    def write_groups(self, connection: sqlite3.Connection) -> None:
        rows = (
            (fingerprint, self.upstream, backend, group.sample, group.number, group.first_at, group.last_at)
            for (fingerprint, backend), group in self._groups.items()
        )
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_ADD_GROUP, rows)
        tests = (
            (fingerprint, self.upstream, backend, test, seen.number, seen.last_at)
            for (fingerprint, backend, test), seen in self._tests.items()
        )
        connection.executemany(_ADD_TEST, tests)
        connection.execute("COMMIT")

    def _join_groups(
        self, failure_id: int, backend: str, tests: Sequence[FailedTest], at: int
    ) -> Iterator[Row]:
        for fingerprint, sample in sample_messages(tests).items():
            self._groups.setdefault((fingerprint, backend), _Group(sample, at, at)).count(at)
            yield (fingerprint, self.upstream, failure_id)
        for fingerprint, test in name_tests(tests, fingerprint_failure(tests)):
            self._tests.setdefault((fingerprint, backend, test), _Group(test, at, at)).count(at)

    def _failure(
        self,
        run: GeneratedRun,
        job: Row,
        ended: FailedAs,
        passed_at: int | None,
        tests: Sequence[FailedTest],
    ) -> Row:
        character = next(one for one in run.backend.jobs if one.name == job[_AT["job_name"]])
        marks, failure_id, at = fingerprint_failure(tests), self.next_id, _ended_at(job)
        self.next_id += 1
        happened, pull = run.happened, run.happened.pull
        kind = result_kind(happened.event)
        verdict = _verdict(run, ended, passed_at, character, job[_AT["in_progress_at"]])
        confidence = Confidence.LOW if verdict is VerdictKind.FLAKY and not passed_at else Confidence.MEDIUM
        sentence = (
            "The same commit passed when it was run again." if passed_at is not None else _SENTENCES[verdict]
        )
        return (
            failure_id, happened.guid, self.upstream, run.backend.key, run.backend.workflow, str(run.run_id),
            job[_AT["attempt"]], character.name, kind.value if kind else "", happened.event,
            pull.number if pull else None, job[_AT["head_sha"]], _REF,
            self._newest if pull else job[_AT["head_sha"]], 1, pull.author.lower() if pull else None,
            int(pull is not None and pull.association in TRUSTED_ASSOCIATIONS), at, ended.value, marks.fingerprint,
            RULES, marks.sample, " ".join(marks.distinct) or None, passed_at, verdict.value, confidence.value,
            sentence, at,
        )  # fmt: skip


def _read_tests(job: Row) -> tuple[FailedTest, ...]:
    return tuple(FailedTest(**test) for test in json.loads(job[_AT["failed_tests"]] or "[]"))


def _ended_at(job: Row) -> int:
    at: int = job[_AT["completed_at"]] or job[_AT["swept_at"]] or job[_AT["in_progress_at"]]
    return at


def _ended(job: Row) -> FailedAs | None:
    conclusion, expected = job[_AT["conclusion"]], job[_AT["expected"]]
    if job[_AT["state"]] == "timed_out":
        return FailedAs.SILENT
    if conclusion == "timed_out":
        return FailedAs.TIMED_OUT
    return FailedAs.FAILURE if conclusion == "failure" and expected != "failure" else None


def _find_pass(jobs: Sequence[Row], failed: Row) -> int | None:
    """When another attempt of the job passed."""
    name = failed[_AT["job_name"]]
    passed = (
        job[_AT["completed_at"]]
        for job in jobs
        if job[_AT["job_name"]] == name and job[_AT["conclusion"]] == "success"
    )
    return next(passed, None)


def _verdict(
    run: GeneratedRun, ended: FailedAs, passed_at: int | None, job: JobCharacter, began: int
) -> VerdictKind:
    if ended is FailedAs.TIMED_OUT:
        return VerdictKind.INFRASTRUCTURE
    if ended is FailedAs.SILENT:
        return VerdictKind.MISSING
    if passed_at is not None:
        return VerdictKind.FLAKY
    if job.is_broken(began):
        return VerdictKind.PRE_EXISTING
    return VerdictKind.NEW if run.happened.breaks else VerdictKind.FLAKY
