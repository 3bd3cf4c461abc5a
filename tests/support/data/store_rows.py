"""`StoreRows` and the fixture `store`: a store in which tests insert rows directly, with the real views over it."""

import json
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, delete, insert, update

from crcr.decide.failures.fingerprint import RULES, fingerprint_failure
from crcr.decide.in_tree.checks import InTreeCheck, Outcome
from crcr.decide.in_tree.packing import pack_checks
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind
from crcr.receive.allowlist_yaml import read_allowlist as check
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema import checks, failures, in_tree, main_tables, statistics
from crcr.record.statistics.rebuild_all_sums import rebuild_extremes, rebuild_sums
from crcr.record.store.database import PostgresLocation
from crcr.record.store.postgres.database import PostgresDatabase
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from support.clock import ManualClock
from support.running_relay import database_url, in_postgresql, place_empty_database
from support.services.postgres import new_database
from support.stores.tables import TableConnection, TableEngine, Where, open_handle, open_table_engine

UPSTREAM = RepoName("Torch/torch")
OTHER = RepoName("other/upstream")
DEFAULT_LIST = """
L1:
  - listen/only
L2:
  - Good/Backend: {hardware: "NPU 910B", oncalls: [ada, grace]}
  - flaky/backend
  - quiet/backend
"""


@dataclass
class StoreRows:
    engine: TableEngine
    database: SqliteDatabase | PostgresDatabase
    views: SqlViews
    clock: ManualClock
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _failed_at: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, table: Table, *rows: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            _insert(connection, table, rows)

    def new_number(self) -> int:
        """A number that no row has yet."""
        return next(self._numbers)

    def sum_up(self) -> None:
        """Compute the sums of the inserted jobs and dispatches: inserting rows does not update them."""
        with self.engine.begin() as connection:
            for table in (statistics.hours, statistics.days, statistics.job_days):
                connection.execute(delete(table).where(table.c.kind != ResultKind.INGESTED.value))
            rebuild_sums(connection)
            rebuild_extremes(connection)

    def ago(self, **by: float) -> int:
        return to_us(self.clock.now() - timedelta(**by))

    def allowlist(self, text: str = DEFAULT_LIST, upstream: RepoName = UPSTREAM, version: int = 1) -> None:
        checked = check(text)
        problems = [[p.line, p.severity, p.message, p.hint] for p in checked.problems]
        good = checked.allowlist is not None
        row = {"upstream": upstream.key, "version": version, "source": "allowlist.yml", "text": text}
        at = self.ago(minutes=5)
        self.add(
            main_tables.allowlist_versions,
            {**row, "good": int(good), "problems": json.dumps(problems), "read_at": at},
        )

    def delivery(
        self, upstream: RepoName = UPSTREAM, *, hours_ago: float = 2, number: int | None = 7, **more: Any
    ) -> str:
        guid = more.pop("guid", None) or f"d-{next(self._numbers):04d}"
        row: dict[str, Any] = {
            "guid": guid,
            "upstream": upstream.key,
            "event": "pull_request" if number else "push",
            "action": "synchronize" if number else None,
            "state": "accepted",
            "source": "webhook",
            "number": number,
            "base_ref": "main" if number else None,
            "head_sha": f"{next(self._numbers):040x}",
            "received_at": self.ago(hours=hours_ago),
            "body_bytes": 10,
            "body": zlib.compress(b"secret body"),
        }
        self.add(main_tables.deliveries, {**row, **more})
        return guid

    def dispatch(self, delivery: str, downstream: str = "good/backend", **more: Any) -> None:
        hours_ago = more.pop("hours_ago", 2)
        row: dict[str, Any] = {
            "upstream": UPSTREAM.key,
            "delivery": delivery,
            "downstream": downstream,
            "level": 2,
            "state": "sent",
            "event": "pull_request",
            "action": "synchronize",
            "number": 7,
            "head_sha": "f" * 40,
            "lane": "pull/7",
            "created_at": self.ago(hours=hours_ago),
            "sent_at": self.ago(hours=hours_ago),
        }
        self.add(main_tables.dispatches, {**row, **more})

    def job(self, delivery: str, conclusion: str | None = "success", **more: Any) -> None:
        hours_ago = more.pop("hours_ago", 1.5)
        row: dict[str, Any] = {
            "upstream": UPSTREAM.key,
            "delivery": delivery,
            "downstream": "good/backend",
            "workflow": ".github/workflows/ci.yml",
            "run_id": "1",
            "attempt": 1,
            "job_name": "build",
            "state": "completed" if conclusion else "in_progress",
            "conclusion": conclusion,
            "level": 2,
            "event": "pull_request",
            "number": 7,
            "head_sha": "f" * 40,
            "workflow_name": "CI",
            "in_progress_at": self.ago(hours=hours_ago),
            "completed_at": self.ago(hours=hours_ago - 0.1) if conclusion else None,
            "silent_at": self.ago(hours=-6),
            "trusted": "{}",
            "untrusted": b"{}",
        }
        row |= more
        self.add(main_tables.jobs, {"reported_name": row["job_name"], **row})

    def failure(self, delivery: str, downstream: str, message: str, **more: Any) -> str:
        """Record a job's failure with one failed test, as the recorder does, and its verdict; return its fingerprint."""
        number, test = next(self._numbers), FailedTest(more.pop("test", "test_lazy"), None, message)
        fingerprint = str(fingerprint_failure((test,)).fingerprint)
        at = self.ago(hours=more.pop("hours_ago", 1))
        key: dict[str, Any] = {"upstream": UPSTREAM.key, "downstream": downstream}
        row = {
            "failure_id": number,
            "delivery": delivery,
            "workflow": ".github/workflows/ci.yml",
            "run_id": "1",
            "attempt": 1,
            "job_name": "build",
            "kind": "pull_request",
            "event": "pull_request",
            "number": 7,
            "head_sha": f"{7:040x}",
            "base_ref": "main",
            "at": at,
            "ended": "failure",
            "fingerprint": fingerprint,
            "fingerprints": fingerprint,
            "rules": RULES,
            "sample": message,
            "verdict": "new",
            "confidence": "medium",
            "sentence": "It is not known.",
        }
        self.add(failures.failures, {**key, **row, **more})
        mark = {"fingerprint": fingerprint, "upstream": UPSTREAM.key}
        self.add(failures.failure_fingerprints, {**mark, "failure_id": number})
        times = self._failed_at.setdefault((fingerprint, downstream), [])
        times.append(at)
        group, ends = failures.failure_groups, {"first_at": min(times), "last_at": max(times)}
        with self.engine.begin() as connection:
            is_group = (group.c.fingerprint == fingerprint) & (group.c.downstream == downstream)
            connection.execute(delete(group).where(is_group))
            row = {**mark, **key, **ends, "sample": message, "number": len(times)}
            connection.execute(insert(group).values(**row))
            tests = failures.failed_tests
            is_test = (tests.c.fingerprint == fingerprint) & (tests.c.downstream == downstream)
            connection.execute(delete(tests).where(is_test & (tests.c.test == test.name)))
            seen = {"number": len(times), "last_at": max(times)}
            connection.execute(insert(tests).values(**mark, downstream=downstream, test=test.name, **seen))
        return fingerprint

    def known(self, fingerprint: str, **more: Any) -> None:
        row: dict[str, Any] = {
            "fingerprint": fingerprint,
            "upstream": UPSTREAM.key,
            "url": "https://github.com/torch/torch/issues/12",
            "state": "open",
            "who": "mia",
            "reason": "a driver bug",
            "created_at": self.ago(hours=1),
            "until_at": self.ago(days=-30),
        }
        self.add(failures.known_failures, {**row, **more})

    def pull(self, number: int = 7, **more: Any) -> str:
        """Add a pull request with one delivery of its head; return the delivery."""
        head = more.setdefault("head_sha", f"{number:040x}")
        row = {"upstream": UPSTREAM.key, "number": number, "updated_at": self.ago(hours=2), "is_open": 1}
        text = {"draft": 0, "labels": '["ciflow/crcr/npu"]', "base_ref": "main", "title": "Fuse it"}
        self.add(main_tables.pulls, {**row, **text, "author": "ada", **more})
        return self.delivery(number=number, head_sha=head, base_ref=more.get("base_ref", text["base_ref"]))

    def in_tree(self, sha: str, *checks: InTreeCheck, packed: bool = False) -> None:
        """Add the in-tree checks of a commit, be it packed."""
        counted = Counter(check.outcome.value for check in checks)
        commit = {"sha": sha, "upstream": UPSTREAM.key}
        counts: dict[str, Any] = {outcome.value: counted[outcome.value] for outcome in Outcome}
        row = {**commit, **counts, "unpacked": int(not packed)}
        blob = pack_checks(checks) if packed else None
        self.add(in_tree.in_tree_commits, {**row, "changed_at": self.ago(minutes=5), "packed": blob})
        if not packed:
            self.add(in_tree.in_tree_checks, *({**commit, **check._asdict()} for check in checks))

    def rerun(self, sha: str, check: InTreeCheck) -> None:
        """Add the row of a check of a packed commit that runs again; counts stay as they are."""
        commit = {"sha": sha, "upstream": UPSTREAM.key}
        self.add(in_tree.in_tree_checks, {**commit, **check._asdict()})
        with self.engine.begin() as connection:
            table = in_tree.in_tree_commits
            connection.execute(update(table).where(table.c.sha == sha).values(unpacked=1))

    def base_commit(self, sha: str, position: int, ref: str = "main") -> None:
        """Add a commit of a branch, which becomes the default one."""
        row = {"sha": sha, "upstream": UPSTREAM.key, "ref": ref, "position": position, "before": None}
        self.add(failures.base_commits, {**row, "pushed_at": self.ago(minutes=100 - position)})
        with self.engine.begin() as connection:
            table = main_tables.upstreams
            is_ours = table.c.upstream == UPSTREAM.key
            connection.execute(update(table).where(is_ours).values(default_branch=ref))

    def gate(self, head_sha: str, state: str = "pending", title: str = "recorded words") -> None:
        row = {"upstream": UPSTREAM.key, "head_sha": head_sha, "state": state, "title": title}
        self.add(checks.gates, {**row, "judged_at": self.ago(minutes=1)})

    def waiver(self, downstream: str = "gate/one", **more: Any) -> None:
        row: dict[str, Any] = {
            "upstream": UPSTREAM.key,
            "number": 7,
            "head_sha": f"{7:040x}",
            "base_ref": "main",
            "downstream": downstream,
            "who": "mia",
            "reason": "known on the new driver",
            "created_at": self.ago(minutes=30),
        }
        self.add(checks.waivers, {**row, **more})

    def check(self, name: str, downstream: str | None = None, **more: Any) -> None:
        row: dict[str, Any] = {
            "upstream": UPSTREAM.key,
            "head_sha": f"{7:040x}",
            "name": name,
            "round": 1,
            "tier": "backend" if downstream else "gate",
            "downstream": downstream,
            "incarnation": "1",
            "check_run_id": next(self._numbers),
            "status": "completed",
            "conclusion": "success",
            "title": f"{name} says so",
            "digest": "",
            "published_at": self.ago(minutes=1),
        }
        self.add(checks.checks, {**row, **more})

    def group(self, head_sha: str, numbers: str | None = "[7]", **more: Any) -> str:
        guid = self.delivery(number=None, event="merge_group", action="checks_requested", head_sha=head_sha)
        row = {"upstream": UPSTREAM.key, "head_sha": head_sha, "delivery": guid, "base_sha": "b" * 40}
        refs = {"head_ref": "gh-readonly-queue/main/pr-7", "base_ref": "refs/heads/main"}
        at = {"created_at": self.ago(minutes=20)}
        self.add(checks.merge_groups, {**row, **refs, "numbers": numbers, **at, **more})
        return guid

    def effect(self, state: str = "waiting", target: str = "good/backend", **more: Any) -> None:
        at = self.ago(minutes=3)
        row = {"upstream": UPSTREAM.key, "kind": "send_dispatch", "target": target, "lane": "pull/7"}
        times = {"due_at": at, "created_at": at, "finished_at": None if state == "waiting" else at}
        self.add(main_tables.effects, {**row, "state": state, **times, **more})

    def change(self, kind: str = "job", downstream: str | None = "good/backend", **more: Any) -> None:
        row = {"upstream": UPSTREAM.key, "kind": kind, "downstream": downstream, "at": self.ago(seconds=0)}
        self.add(main_tables.changes, {**row, **more})


def _insert(connection: TableConnection, table: Table, rows: tuple[dict[str, Any], ...]) -> None:
    for row in rows:
        connection.execute(insert(table).values(**row))


@asynccontextmanager
async def open_store_rows(
    folder: Path,
    *,
    upstreams: tuple[RepoName, ...] = (UPSTREAM, OTHER),
    now: datetime | None = None,
    on_postgresql: bool | None = None,
) -> AsyncIterator[StoreRows]:
    """`on_postgresql` chooses the kind of database; by default the run of the tests does."""
    where: Where = folder / "crcr.db"
    if in_postgresql() if on_postgresql is None else on_postgresql:
        where = PostgresLocation(database_url(folder) if in_postgresql() else new_database())
    elif not (folder / "crcr.db").exists():
        place_empty_database(folder / "crcr.db")
    engine, database = open_table_engine(where), open_handle(where)
    lists = Allowlists(database, Downstreams(database, CheckRefresher({})), CheckRefresher({}), check)
    clock = ManualClock(now) if now else ManualClock()
    store = StoreRows(engine, database, SqlViews(database, lists, upstreams), clock)
    for each in upstreams:
        row = {"upstream": each.key, "name": each.full_name, "created_at": store.ago(days=1)}
        store.add(main_tables.upstreams, row)
    try:
        yield store
    finally:
        await database.close()
        engine.dispose()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path) as rows:
        yield rows
