"""Generates history in bulk: fills a migrated SQLite database with days or years of an upstream's activity.

Writes plain SQL to the existing tables in large transactions; the same seed gives the same rows. It does not write the
sums, and deliveries have no bodies.
"""
# ruff: noqa: S608 - every name in these statements is our own

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crcr.demo.history.backends import DAY_US, HOUR_US, BackendCharacter, BackendSpec, characters
from crcr.demo.history.events import EVENTS_PER_PULL, GeneratedEvent, UpstreamHistory
from crcr.demo.history.failures import (
    BASE_COLUMNS,
    FAILURE_COLUMNS,
    FINGERPRINT_COLUMNS,
    WINDOW_US,
    FailureWriter,
)
from crcr.demo.history.jobs import COLUMNS, GeneratedRun, JobWriter

_JOBS_AT_ONCE = 20_000
_SECOND_RUN = 0.015
_UNLUCKY, _PARKED = 0.002, 0.0005
_TABLES: dict[str, tuple[str, ...]] = {
    "pulls": (
        "upstream", "number", "head_sha", "previous_sha", "head_at", "updated_at", "is_open", "draft", "labels",
        "base_ref", "title", "author", "author_association", "merged", "opened_at",
    ),
    "deliveries": (
        "guid", "upstream", "event", "action", "state", "source", "number", "head_sha", "ref", "received_at",
        "body_bytes",
    ),
    "dispatches": (
        "delivery", "upstream", "downstream", "level", "state", "reason", "event", "action", "number", "head_sha",
        "lane", "created_at", "attempted_at", "sent_at", "superseded_at", "delay_s",
    ),
    "runs": (
        "run_id", "upstream", "downstream", "delivery", "workflow", "workflow_name", "issuer", "superseded",
        "first_seen_at", "attempt", "attempt_at", "over_attempt",
    ),
    "jobs": COLUMNS,
    "merge_groups": (
        "head_sha", "upstream", "delivery", "head_ref", "base_sha", "base_ref", "numbers", "created_at",
        "destroyed_at",
    ),
    "gates": ("head_sha", "upstream", "state", "title", "judged_at"),
    "commits": ("sha", "upstream", "standing", "branch", "seen_at", "checked_at"),
    "base_commits": BASE_COLUMNS,
    "failures": FAILURE_COLUMNS,
    "failure_fingerprints": FINGERPRINT_COLUMNS,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPlan:
    upstream: str
    backends: Sequence[BackendSpec]
    until: int
    """End of the history, in microseconds since 1970."""
    days: float
    jobs: int
    """Approximate number of job rows."""
    seed: int = 1
    links: str = "https://github.example"
    all_end: bool = True
    """Nothing is running and no pull request is open at the end, because nothing would continue it."""
    first_number: int = 1

    @property
    def since(self) -> int:
        return self.until - int(self.days * DAY_US)


@dataclass(slots=True)
class GeneratedCounts:
    jobs: int = 0
    deliveries: int = 0
    pulls: int = 0
    next_number: int = 1


def generate_history(
    connection: sqlite3.Connection, plan: HistoryPlan, progress: Callable[[float], None] = lambda _: None
) -> GeneratedCounts:
    """Write the history; `progress` receives the share that is done."""
    writer = _Filling(plan, _Rows(connection))
    with _without_durability(connection):
        for event in writer.history.happens():
            writer.write(event)
            if writer.rows.waiting("jobs") >= _JOBS_AT_ONCE:
                writer.rows.flush()
                progress((event.at - plan.since) / max(1, plan.until - plan.since))
        writer.write_pulls()
        writer.rows.flush()
        writer.failures.write_groups(connection)
    progress(1.0)
    return writer.filled()


def count_pulls(plan: HistoryPlan) -> int:
    """Return how many pull requests the history of this plan has."""
    history = _plan_events(plan, characters(plan.backends, plan.seed, (plan.since, plan.until)))
    for _ in history.happens():
        pass
    return len(history.pulls)


def _plan_events(plan: HistoryPlan, backends: Sequence[BackendCharacter]) -> UpstreamHistory:
    nightly_jobs = sum(len((backend.nightly or backend).jobs) for backend in backends) * plan.days
    jobs_per_event = sum(len(backend.jobs) for backend in backends if "push" in backend.events) or 1
    pulls = max(0.0, plan.jobs - nightly_jobs) / (jobs_per_event * EVENTS_PER_PULL)
    return UpstreamHistory(
        chance=random.Random(f"{plan.seed} upstream"),
        spell=(plan.since, plan.until),
        pulls_a_day=pulls / plan.days,
        device_labels=[f"ciflow/crcr/{backend.device}" for backend in backends if backend.level == 3],
        all_end=plan.all_end,
        first_number=plan.first_number,
    )


@contextmanager
def _without_durability(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn off durability: an interrupted history is discarded, not repaired."""
    before = connection.isolation_level
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=-1000000")
    try:
        yield
    finally:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-32000")
        connection.isolation_level = before


class _Rows:
    """Buffered rows per table; each flush is one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._insert = {table: _insert(connection, table, names) for table, names in _TABLES.items()}
        self._rows: dict[str, list[Sequence[Any]]] = {table: [] for table in _TABLES}
        self.written = dict.fromkeys(_TABLES, 0)

    def add(self, table: str, *values: Any) -> None:
        self._rows[table].append(values)

    def next_after(self, table: str, column: str) -> int:
        (highest,) = self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()
        return (highest or 0) + 1

    def add_many(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        self._rows[table] += rows

    def waiting(self, table: str) -> int:
        return len(self._rows[table])

    def flush(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for table, rows in self._rows.items():
            self._connection.executemany(self._insert[table], rows)
            self.written[table] += len(rows)
            rows.clear()
        self._connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, table: str, names: tuple[str, ...]) -> str:
    columns = {row[1]: row for row in connection.execute(f"PRAGMA table_info({table})")}
    missing = {name for name, row in columns.items() if row[3] and row[4] is None} - set(names)
    if missing or set(names) - set(columns):
        raise ValueError(f"{table} has changed: {sorted(missing | (set(names) - set(columns)))}")
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


@dataclass(slots=True)
class _Filling:
    plan: HistoryPlan
    rows: _Rows
    history: UpstreamHistory = field(init=False)
    failures: FailureWriter = field(init=False)
    _backends: tuple[BackendCharacter, ...] = field(init=False)
    _chance: random.Random = field(init=False)
    _jobs: JobWriter = field(init=False)
    _last_run_id: int = 17_200_000_000

    def __post_init__(self) -> None:
        plan = self.plan
        self._backends = characters(plan.backends, plan.seed, (plan.since, plan.until))
        self._chance = random.Random(f"{plan.seed} jobs")
        self._jobs = JobWriter(plan.upstream.lower(), self._chance, plan.links, plan.until, plan.all_end)
        self.failures = FailureWriter(
            plan.upstream.lower(),
            max(plan.since, plan.until - WINDOW_US),
            self.rows.next_after("failures", "failure_id"),
            self.rows.next_after("base_commits", "position"),
        )
        self.history = _plan_events(plan, self._backends)

    def filled(self) -> GeneratedCounts:
        written = self.rows.written
        pulls = written["pulls"]
        return GeneratedCounts(written["jobs"], written["deliveries"], pulls, self.plan.first_number + pulls)

    def write(self, happened: GeneratedEvent) -> None:
        if (pushed := self.failures.place_push(happened)) is not None:
            self.rows.add("base_commits", *pushed)
        if happened.event != "nightly":
            self._delivery(happened)
        else:
            times = (happened.at, happened.at + HOUR_US)
            self.rows.add("commits", happened.guid, self.plan.upstream.lower(), "base", "main", *times)
        for backend in self._backends:
            if happened.event == "nightly":
                if not _is_away(backend, happened.at):
                    night = happened.at + self._chance.randrange(HOUR_US)
                    self._run(backend.nightly or backend, happened, night)
            elif happened.event in backend.events:
                self._dispatch(backend, happened)

    def write_pulls(self) -> None:
        upstream, until = self.plan.upstream.lower(), self.plan.until
        for pull in self.history.pulls:
            at, sha = pull.head(until)
            before = pull.heads[-2][1] if len(pull.heads) > 1 else None
            updated = pull.ended_at or at
            self.rows.add(
                "pulls", upstream, pull.number, sha, before, at, updated, int(pull.ended_at is None), 0,
                json.dumps(list(pull.labels)), "main", pull.title, pull.author, pull.association, int(pull.merged),
                pull.heads[0][0],
            )  # fmt: skip

    def _delivery(self, happened: GeneratedEvent) -> None:
        upstream, pull = self.plan.upstream.lower(), happened.pull
        size = 24_000 + self._chance.randrange(6_000)
        self.rows.add(
            "deliveries", happened.guid, upstream, happened.event, happened.action, "accepted", "webhook",
            pull.number if pull else None, happened.head_sha, happened.ref, happened.at, size,
        )  # fmt: skip
        if happened.event == "merge_group" and happened.ref:
            base = happened.ref.rpartition("-")[2]
            self.rows.add(
                "merge_groups", happened.head_sha, upstream, happened.guid, happened.ref, base, "refs/heads/main",
                json.dumps(list(happened.numbers)), happened.at, happened.destroyed_at,
            )  # fmt: skip
        if happened.action in {"opened", "synchronize", "checks_requested"} and self._gates:
            open_ = pull is not None and pull.ended_at is None and happened.superseded_at is None
            state = "over" if not open_ else "failed" if happened.breaks else "passed"
            title = "1 of 3 backends failed" if happened.breaks else "3 backends passed"
            self.rows.add("gates", happened.head_sha, upstream, state, title, happened.at + DAY_US // 12)

    @property
    def _gates(self) -> bool:
        return any(backend.level == 4 for backend in self._backends)

    def _dispatch(self, backend: BackendCharacter, happened: GeneratedEvent) -> None:
        luck = self._chance.random()
        delay = int(self._chance.lognormvariate(-1.8, 0.5) * 1e6)
        sent: int | None = happened.at + delay
        state, reason = "sent", None
        if luck < _PARKED:
            state, reason, sent = "parked", "GitHub answered 403 five times", None
        elif luck < _UNLUCKY and happened.superseded_at is not None:
            state, reason, sent = "cancelled", "superseded by a newer commit", None
        number = happened.pull.number if happened.pull else None
        lane = f"pull/{number}" if number else happened.ref or "push"
        self.rows.add(
            "dispatches", happened.guid, self.plan.upstream.lower(), backend.key, backend.level, state, reason,
            happened.event, happened.action, number, happened.head_sha, lane, happened.at, happened.at + delay // 2,
            sent, happened.superseded_at, None if sent is None else delay / 1e6,
        )  # fmt: skip
        if sent is not None and happened.has_jobs and not _is_away(backend, happened.at):
            self._run(backend, happened, sent)

    def _run(self, backend: BackendCharacter, happened: GeneratedEvent, sent_at: int) -> None:
        if not backend.jobs:
            return
        if self._chance.random() < _SECOND_RUN and happened.event != "nightly":
            self._write_run(
                GeneratedRun(backend, happened, self._allocate_run_id(), sent_at, superseded=True)
            )
            sent_at += 60_000_000
        self._write_run(GeneratedRun(backend, happened, self._allocate_run_id(), sent_at))

    def _write_run(self, run: GeneratedRun) -> None:
        rows = self._jobs.rows(run)
        failures, members = self.failures.list_failures(run, rows)
        self.rows.add_many("failures", failures)
        self.rows.add_many("failure_fingerprints", members)
        if not rows or run.happened.event == "nightly":
            self.rows.add_many("jobs", rows)
            return
        first = min(row[25] for row in rows)
        again = [row[25] for row in rows if row[5] == 2]
        attempt = 2 if again else 1
        over = attempt if run.backend.level >= 3 and all(row[8] == "completed" for row in rows) else None
        backend = run.backend
        self.rows.add_many("jobs", rows)
        self.rows.add(
            "runs", str(run.run_id), self.plan.upstream.lower(), backend.key, run.happened.guid, backend.workflow,
            backend.workflow_name, "github", int(run.superseded), first, attempt, min(again, default=None), over,
        )  # fmt: skip

    def _allocate_run_id(self) -> int:
        self._last_run_id += self._chance.randrange(1, 400)
        return self._last_run_id


def _is_away(backend: BackendCharacter, at: int) -> bool:
    return any(begin <= at < end for begin, end in backend.away)
