"""Query plans on PostgreSQL: no frequent query and no page scans a growing table.

SQLite's plans are checked by test_query_plans.py. Here the queries are recorded as they run, then explained.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette

from contract.store.test_query_plans import (
    ALLOWLIST,
    BACKENDS,
    GROWING,
    PAGES,
    UPSTREAM,
    all_statements,
    job_addresses,
)
from crcr.decide.allowlist.entries import AllowlistReading
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.record.store.database import PostgresLocation
from crcr.record.store.postgres.batching import PostgresTx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from crcr.show.pages.frame import Frame
from crcr.show.pages.routes import routes
from support.clock import ManualClock
from support.services.postgres import new_database, run_on
from support.stores.databases import CORE, Stores
from support.stores.race_harness import NOW, Process
from support.stores.tables import open_handle, open_table_engine
from support.stores.two_stores import copy_to_postgresql

LATE = datetime(2026, 8, 3, 12, tzinfo=UTC)
Queries = list[tuple[str, list[Any]]]
_SCANS = {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan", "Bitmap Heap Scan"}
_FEW = {"ix_pulls_head", "ix_effects_queue", "ix_effects_lane", "ix_effects_claimed", "ix_effects_parked"}
"""Partial indexes that hold only open or parked rows: these may be scanned in full."""


@contextmanager
def recording(queries: Queries) -> Iterator[None]:
    """Record every statement that runs inside the block, with its arguments."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("one", "all", "run"):
            patch.setattr(PostgresTx, name, _recorded(getattr(PostgresTx, name), queries))
        yield


def _recorded(original: Any, queries: Queries) -> Any:
    async def record(self: PostgresTx, statement: Statement, **params: Any) -> Any:
        compiled = statement.for_dialect("postgresql")
        queries.append((compiled.sql, compiled.arguments(params)))
        return await original(self, statement, **params)

    return record


async def plans(
    url: str, queries: Queries, *, prefer_indexes: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """The scans of each statement's plan; `prefer_indexes` forces an index wherever one can be used."""
    connection = await asyncpg.connect(url)
    if prefer_indexes:
        await connection.execute("SET enable_seqscan = off")
    scans_by_statement = {}
    for sql, arguments in queries:
        if sql.lstrip()[:6].upper() in {"SELECT", "UPDATE", "DELETE", "WITH R"}:
            plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *arguments)
            scans_by_statement[sql] = list(_scans(json.loads(plan)[0]["Plan"]))
    await connection.close()
    return scans_by_statement


def _scans(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if node["Node Type"] in _SCANS:
        yield {name: value for name, value in node.items() if name != "Plans"}
    for child in node.get("Plans", ()):
        yield from _scans(child)


def full_scans(
    scans_by_statement: Mapping[str, list[dict[str, Any]]], tables: tuple[str, ...] = GROWING
) -> dict[str, list[str]]:
    """By statement, the scans that read one of the tables in full."""
    scans_of_tables = {
        sql: [_describe_scan(scan) for scan in scans if _is_full_scan(scan, tables)]
        for sql, scans in scans_by_statement.items()
    }
    return {sql: tables for sql, tables in scans_of_tables.items() if tables}


def _is_full_scan(scan: Mapping[str, Any], tables: tuple[str, ...]) -> bool:
    if scan.get("Relation Name") not in tables:
        return False
    if scan["Node Type"] == "Seq Scan":
        return True
    if scan["Node Type"] == "Bitmap Heap Scan" or scan.get("Index Name") in _FEW:
        return False
    # Reading an index in order up to a page's limit needs no condition; a full count would show up.
    return "Index Cond" not in scan and not _is_end(scan)


def _is_end(scan: Mapping[str, Any]) -> bool:
    return scan.get("Index Name", "").startswith(
        ("pk_", "changes_", "checks_", "ix_jobs_running")
    ) or "pkey" in scan.get("Index Name", "")


def _describe_scan(scan: Mapping[str, Any]) -> str:
    return f"{scan['Node Type']} of {scan.get('Relation Name')} by {scan.get('Index Name')}"


async def test_every_statement_can_be_prepared() -> None:
    """Syntax, names and types are valid, also for statements that no test runs on PostgreSQL."""
    connection = await asyncpg.connect(new_database())
    errors = {}
    for name, statement in all_statements():
        try:
            await connection.prepare(statement.for_dialect("postgresql").sql)
        except asyncpg.PostgresError as refused:
            errors[name] = str(refused)
    await connection.close()
    assert errors == {}


# Frequent queries on large tables, with the planner's own choice


_EFFECTS = """
INSERT INTO effects (upstream, kind, target, lane, delivery, state, due_at, created_at, finished_at)
SELECT 'pytorch-like/core', 'send_dispatch', 'org/b' || n % 20, 'pull/' || n % 500, 'old' || n,
  CASE WHEN n % 40 = 0 THEN 'waiting' WHEN n % 997 = 0 THEN 'parked' ELSE 'done' END,
  1767225600000000 + n, 1767225600000000, 1767225600000000 + n FROM generate_series(1, 40000) AS n
"""
_DELIVERIES = """
INSERT INTO deliveries (guid, upstream, event, state, source, number, head_sha, received_at, body_bytes)
SELECT 'old' || n, 'pytorch-like/core', 'pull_request', 'accepted', 'webhook', n, lpad(n::text, 40, '0'),
  1767225600000000 + n, 0 FROM generate_series(1, 20000) AS n
"""
_DISPATCHES = """
INSERT INTO dispatches (upstream, delivery, downstream, level, state, event, number, head_sha, lane, created_at,
  attempted_at, sent_at) SELECT 'pytorch-like/core', 'old' || n, 'org/b' || b, 2, 'sent', 'pull_request', n,
  lpad(n::text, 40, '0'), 'x', 1767225600000000 + n, 1, 1 FROM generate_series(1, 10000) AS n, generate_series(0, 2) AS b
"""
_JOBS = """
INSERT INTO jobs (delivery, upstream, downstream, workflow, run_id, attempt, job_name, reported_name, state, conclusion,
  level, event, number, workflow_name, in_progress_at, completed_at, silent_at, ended_as, trusted, untrusted)
SELECT 'old' || n, 'pytorch-like/core', 'org/b' || b, 'ci.yml', (n * 10 + b)::text, 1, 'build', 'build', 'completed',
  'success', 2, 'pull_request', n, 'CI', 1767225600000000 + n, 1767225600000000 + n, 0, 'success', '{}', ''
FROM generate_series(1, 10000) AS n, generate_series(0, 2) AS b
"""
_RUNS = """
INSERT INTO runs (run_id, upstream, downstream, delivery, workflow, workflow_name, issuer, first_seen_at)
SELECT run_id, upstream, downstream, delivery, workflow, workflow_name, 'x', 0 FROM jobs
"""


LARGE = ("effects", "deliveries", "dispatches", "jobs", "runs")


@pytest.fixture(scope="module")
def large_database() -> str:
    url = new_database()
    for sql in (_EFFECTS, _DELIVERIES, _DISPATCHES, _JOBS, _RUNS, "ANALYZE"):
        run_on(url, sql)
    return url


async def test_frequent_queries_never_scan_a_large_table(large_database: str) -> None:
    listed = "L2:\n" + "".join(f"  - org/b{number}\n" for number in range(20)) + "  - org/backend\n"
    process, queries = Process.connect(large_database), Queries()
    await process.stores.acts.register_upstreams((CORE,), NOW)
    await process.stores.allowlists.take_reading(CORE, AllowlistReading("test", listed), NOW)
    with recording(queries):
        outbox = process.stores.outbox("w")
        await outbox.claim(8, NOW)
        await outbox.next_due(NOW)
        guid = await process.open_and_send(30_001)
        await process.report(guid)
        await process.report(guid, "completed", conclusion="success")
        await process.report("old77")
        views = SqlViews(process.database, process.stores.allowlists, (CORE,))
        await views.changes(3, 50)
        await views.vitals(NOW)
        await views.health(NOW)
    await process.database.close()
    assert len(queries) > 60
    assert full_scans(await plans(large_database, queries), LARGE) == {}


def test_a_full_scan_of_a_growing_table_is_reported() -> None:
    scans_by_statement = {
        "a": [{"Node Type": "Seq Scan", "Relation Name": "jobs"}],
        "b": [{"Node Type": "Seq Scan", "Relation Name": "upstreams"}],
    }
    assert full_scans(scans_by_statement) == {"a": ["Seq Scan of jobs by None"]}


# Pages


@pytest.fixture(scope="module")
def database_with_history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("past") / "crcr.db"
    plan = HistoryPlan(
        upstream=UPSTREAM.key, backends=BACKENDS, until=to_us(LATE), days=15, jobs=4_000, all_end=False
    )
    fill_database(path, plan)
    return path, copy_to_postgresql(path)


async def test_page_queries_never_scan_a_table_with_history(database_with_history: tuple[Path, str]) -> None:
    path, url = database_with_history
    database, queries = open_handle(PostgresLocation(url)), Queries()
    stores = Stores.over(database)
    await stores.acts.register_upstreams((UPSTREAM,), LATE)
    await stores.allowlists.take_reading(UPSTREAM, AllowlistReading("test", ALLOWLIST), LATE)
    views = SqlViews(database, stores.allowlists, (UPSTREAM,), ingests=True, sandbox=True)
    app = Starlette(routes=routes(Frame(views, upstreams=(UPSTREAM,), clock=ManualClock(LATE))))
    with recording(queries):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://relay", follow_redirects=True
        ) as reader:
            for page in PAGES:
                response = await reader.get(page.format(**_sample_values(path)))
                assert response.status_code == 200, page
    await database.close()
    assert len({sql for sql, _ in queries}) > 50
    assert full_scans(await plans(url, queries, prefer_indexes=True)) == {}


def _sample_values(path: Path) -> dict[str, Any]:
    engine = open_table_engine(path)
    with engine.begin() as connection:
        values = {
            name: connection.exec_driver_sql(sql).fetchone()[0]
            for name, sql in (
                ("number", "SELECT number FROM pulls WHERE is_open = 1"),
                ("sha", "SELECT head_sha FROM pulls WHERE is_open = 1"),
                ("night", "SELECT head_sha FROM jobs WHERE event = 'nightly'"),
                ("guid", "SELECT guid FROM deliveries WHERE event = 'push'"),
            )
        }
        values |= job_addresses(lambda sql: connection.exec_driver_sql(sql).fetchone())
    engine.dispose()
    return values
