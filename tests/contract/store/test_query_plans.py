"""Query plans on SQLite: no statement scans a growing table.

Checked twice: for every statement of the code, and for the queries that pages really run on a store with history.
"""

import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import pytest
from starlette.applications import Starlette

import crcr.record
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.jobs.short_address import short_token
from crcr.decide.model import RepoName
from crcr.decide.views.culprits import CulpritQuery
from crcr.decide.views.overview import JobQuery
from crcr.decide.views.search import SearchQuery
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.migrations.run import migrate
from crcr.record.store.database import Database, Tx, Unit
from crcr.record.store.sqlite.database import SqliteTx, connect
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.sql_views import SqlViews
from crcr.show.pages.frame import Frame
from crcr.show.pages.routes import routes
from crcr.show.urls import cursors
from support.clock import ManualClock
from support.data import store_rows
from support.data.base_history import BaseHistory, sha_of

T = TypeVar("T")

GROWING = (
    *("deliveries", "dispatches", "runs", "jobs", "effects", "changes", "audit", "pulls"),
    *("checks", "gates", "waivers", "commands", "recovered", "merge_groups", "approvals"),
    *("hours", "days", "job_days", "ingested", "levels"),
    *("refusals", "sandbox_jobs", "builds", "commits"),
    *(
        "failures",
        "failure_fingerprints",
        "failure_groups",
        "failed_tests",
        "base_commits",
        "upstream_tags",
        "person_verdicts",
    ),
    *("in_tree_commits", "in_tree_checks", "bisections", "bisection_runs"),
    *("notice_threads", "notice_events", "notice_messages", "notice_posts"),
)
LARGEST_TABLES = ("dispatches", "runs", "jobs", "hours", "days", "job_days", "ingested", "pulls")
"""Of these tables, all rows of an upstream, or even of one delivery to many backends, are too many to scan."""
ALLOWED = {
    "crcr.record.upkeep.old_results._DROP_BASE_COMMITS": ["SEARCH p USING PRIMARY KEY (upstream=?)"],
}
"""Allowed steps: the upkeep searches for a pull request into a branch, once for the branch's last commit."""
PARTIAL_INDEXES = ("ix_dispatches_unsent",)
"""Partial indexes that hold only unfinished rows."""
_QUERY = re.compile(r"\s*(SELECT|UPDATE|DELETE|WITH)", re.IGNORECASE)
_STEP = re.compile(r"(SCAN|SEARCH) (\w+)(?: USING .*?(?:INDEX (\w+) )?\((.*)\))?")


def all_statements() -> list[tuple[str, Statement]]:
    """All statements of the store, with the name of each."""
    named_statements = []
    for module in pkgutil.walk_packages(crcr.record.__path__, "crcr.record."):
        if module.name.startswith("crcr.record.migrations"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            values = value.items() if isinstance(value, dict) else [("", value)]
            named_statements += [
                (f"{module.name}.{name}{f'[{key}]' if key else ''}", statement)
                for key, statement in values
                if isinstance(statement, Statement)
            ]
    return named_statements


def statements() -> list[tuple[str, Statement]]:
    return [
        (name, statement)
        for name, statement in all_statements()
        if _QUERY.match(statement.for_dialect("sqlite").sql)
    ]


def scanning_steps(connection: sqlite3.Connection, sql: str, params: Mapping[str, Any]) -> list[str]:
    """The steps of a plan that scan a growing table, or search its rows by their upstream alone."""
    tables_by_alias = {table: table for table in GROWING}
    tables_by_alias |= {
        alias: table for table, alias in re.findall(rf"\b({'|'.join(GROWING)})\s+(?:AS\s+)?([a-z]\w*)\b", sql)
    }
    scans = []
    for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", params):
        step = _STEP.match(row[3])
        table = tables_by_alias.get(step[2]) if step else None
        if step is None or table is None:
            continue
        too_broad = step[4] == "upstream=?" and table in LARGEST_TABLES and step[3] not in PARTIAL_INDEXES
        if (step[1] == "SCAN" and "VIRTUAL" not in row[3]) or too_broad:
            scans.append(row[3])
    return scans


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    path = tmp_path_factory.mktemp("plans") / "crcr.db"
    migrate(Path(path))
    return sqlite3.connect(path)


@pytest.mark.parametrize(
    ("name", "statement"), statements(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_statement_uses_indexes_and_scans_no_growing_table(
    name: str, statement: Statement, database: sqlite3.Connection
) -> None:
    sql = statement.for_dialect("sqlite").sql
    steps = scanning_steps(database, sql, dict.fromkeys(re.findall(r":(\w+)", sql), "1"))
    assert steps == ALLOWED.get(name, [])


UPSTREAM, NOW = RepoName("bench/upstream"), datetime(2026, 8, 3, 12, tzinfo=UTC)
BACKENDS = (
    BackendSpec("big/backend", 4, 12),
    BackendSpec("org/backend", 3, 4),
    BackendSpec("few/jobs", 2, 2),
    BackendSpec("l/one", 1, 1),
)
ALLOWLIST = """
L1: [l/one]
L2: [few/jobs]
L3:
  npu:
    org/backend: [ada]
L4:
  big/backend:
    oncalls: [ada]
    jobs: [lint]
"""


class FixedAllowlists:
    async def in_force(self, tx: Tx, upstream: RepoName) -> Allowlist:
        return cast("Allowlist", read_allowlist(ALLOWLIST).allowlist)


class RecordingTx(SqliteTx):
    """Runs statements and records each with its parameters."""

    def __init__(self, connection: sqlite3.Connection, queries: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__(connection)
        self._queries = queries

    def _execute(self, statement: Statement, params: Mapping[str, Any]) -> sqlite3.Cursor:
        compiled = statement.for_dialect("sqlite")
        self._queries.append((compiled.sql, {**compiled.constants, **params}))
        return super()._execute(statement, params)


class StoreWithHistory:
    """A read-only store with history, filled in bulk and never analysed."""

    def __init__(self, path: Path) -> None:
        self.connection = connect(path, read_only=True)
        self.queries: list[tuple[str, dict[str, Any]]] = []

    async def read(self, unit: Unit[T]) -> T:
        return await unit(RecordingTx(self.connection, self.queries))

    def value(self, sql: str) -> Any:
        return self.connection.execute(sql).fetchone()[0]


@pytest.fixture(scope="module")
def store_with_history(tmp_path_factory: pytest.TempPathFactory) -> StoreWithHistory:
    path = tmp_path_factory.mktemp("past") / "crcr.db"
    fill_database(
        path,
        HistoryPlan(
            upstream=UPSTREAM.key, backends=BACKENDS, until=to_us(NOW), days=15, jobs=4_000, all_end=False
        ),
    )
    return StoreWithHistory(path)


PAGES = (
    "/crcr", "/crcr?range=24h", "/crcr?range=30d&kind=push", "/crcr?kind=nightly", "/crcr?kind=ingested",
    "/crcr/big/backend", "/crcr/big/backend?range=24h", "/crcr/big/backend?kind=push&result=failure",
    "/crcr/big/backend?kind=nightly", "/crcr/big/backend?kind=ingested", "/crcr/big/backend?author=mira-holt&older=1",
    "/crcr/big/backend?job={pull_job}", "/crcr/big/backend?kind=push&job={base_job}", "/crcr/j/{short}",
    "/crcr/big/backend?day=2026-07-30&failing=1", "/crcr/big/backend?kind=nightly&day=2026-07-30",
    "/crcr/big/backend?verdict=new", "/crcr/big/backend?verdict=flaky&kind=nightly",
    "/crcr/few/jobs?q=fix", "/crcr/pulls", "/crcr/pulls?only=failing", "/crcr/pulls?only=waiting&state=all&sort=number", "/crcr/pulls?only=blocked&author=mira-holt&q=fix", "/crcr/pulls?sort=-failures", "/crcr/pulls?sort=gate&state=closed", "/crcr/commits", "/crcr/commits?open=big/backend,org/backend", "/crcr/compat?level=L2", "/badge/compat.svg?match=between&level=L2",
    "/crcr/pr/{number}", "/crcr/commit/{sha}", "/crcr/commit/{night}", "/crcr/metrics?range=90d", "/crcr/deliveries",
    "/crcr/deliveries?number={number}", "/crcr/deliveries?sha={sha}", "/crcr/deliveries/{guid}", "/crcr/waivers",
    "/crcr/failing", "/crcr/failing?kind=nightly", "/crcr/failing?branch=release", "/crcr/audit", "/crcr/failures", "/crcr/failures?q=x&backend=big&known=no", "/crcr/bisections", "/crcr/bisections?backend=big/backend&job=build&state=running", "/crcr/sandbox", "/crcr/sandbox?repository=7", "/crcr/sandbox?repository=a", "/crcr/search?q=scatter", "/crcr/search?q={sha}", "/crcr/search?q={number}",
    "/crcr/search?q=mira-holt", "/crcr/search?q=test&type=test", "/crcr/search?q=er&type=failure",
    "/crcr/big/backend/feed.atom", "/crcr/pr/{number}/feed.atom", "/badge/big/backend.svg", "/badge/big/backend.svg?kind=nightly",
    "/badge/big/backend.svg?kind=ingested",
)  # fmt: skip


def test_a_short_job_address_is_searched_by_delivery_and_not_among_all_jobs_of_a_backend(
    database: sqlite3.Connection,
) -> None:
    statement = dict(statements())["crcr.record.views.backends.job_results._OF_DELIVERIES"]
    params = {"start": "a", "end": "b", "upstream": "u", "downstream": "d", "most": 1}
    plan = database.execute(f"EXPLAIN QUERY PLAN {statement.for_dialect('sqlite').sql}", params).fetchall()
    assert "(delivery>? AND delivery<?)" in str(plan[0][3])


def job_addresses(find: Callable[[str], Any]) -> dict[str, str]:
    """The tokens of jobs on a pull request and on the base, and a short one; `find` reads one row."""
    query = "SELECT delivery, workflow, run_id, attempt, job_name FROM jobs WHERE downstream = 'big/backend' AND event"
    pulled, on_base = (tuple(find(f"{query} {is_one} 'pull_request'")) for is_one in ("=", "<>"))
    return {
        "pull_job": cursors.encode(pulled) or "",
        "base_job": cursors.encode(on_base) or "",
        "short": short_token(UPSTREAM.key, "big/backend", pulled) or "",
    }


async def test_setup_queries_never_scan_a_table_with_history(store_with_history: StoreWithHistory) -> None:
    views = SqlViews(cast("Database", store_with_history), FixedAllowlists(), (UPSTREAM,))
    store_with_history.queries.clear()
    facts = await views.setup(UPSTREAM, RepoName("big/backend"), NOW)
    assert (facts.last_dispatch is not None, facts.last_callback is not None) == (True, True)
    assert {
        sql: steps
        for sql, params in store_with_history.queries
        if (steps := scanning_steps(store_with_history.connection, sql, params))
    } == {}


@pytest.mark.parametrize("verdict", [None, VerdictKind.NEW])
@pytest.mark.parametrize("paged", [False, True])
async def test_job_lists_never_scan_a_table_and_lists_by_verdict_start_at_the_failures(
    store_with_history: StoreWithHistory, verdict: VerdictKind | None, paged: bool
) -> None:
    views = SqlViews(cast("Database", store_with_history), FixedAllowlists(), (UPSTREAM,))
    after = (2**50, "z", "z", "z", "z", 1, "z") if paged else None
    store_with_history.queries.clear()
    await views.jobs(JobQuery(upstream=UPSTREAM, verdict=verdict, after=after))
    queries = [(sql, params) for sql, params in store_with_history.queries if "failures" in sql]
    assert queries
    assert {
        sql: steps
        for sql, params in queries
        if (steps := scanning_steps(store_with_history.connection, sql, params))
    } == {}
    if verdict is not None:
        plans = [
            store_with_history.connection.execute(f"EXPLAIN QUERY PLAN {sql}", params).fetchall()
            for sql, params in queries
        ]
        assert all("ix_failures_verdict" in str(plan[0][3]) for plan in plans)


async def test_the_number_of_search_queries_does_not_grow_with_the_allowlist(
    store_with_history: StoreWithHistory,
) -> None:
    entries = "".join(f"  - owner{number % 97}/backend{number:05}\n" for number in range(10_000))
    long_allowlist = cast("Allowlist", read_allowlist(f"L2:\n  - big/backend\n{entries}").allowlist)

    class LongAllowlists:
        async def in_force(self, tx: Tx, upstream: RepoName) -> Allowlist:
            return long_allowlist

    views = SqlViews(cast("Database", store_with_history), LongAllowlists(), (UPSTREAM,))
    for search_text in ("test", "nothing-like-it", "backend"):
        query = SearchQuery(upstream=UPSTREAM, text=search_text)
        for run_search in (views.search, views.suggest):
            store_with_history.queries.clear()
            await run_search(query, NOW)
            assert 0 < len(store_with_history.queries) < 150
            steps = (
                scanning_steps(store_with_history.connection, sql, params)
                for sql, params in store_with_history.queries
            )
            assert [scans for scans in steps if scans] == []


@pytest.mark.parametrize("page", PAGES)
async def test_page_queries_never_scan_a_table_with_history(
    store_with_history: StoreWithHistory, page: str
) -> None:
    path = page.format(
        number=store_with_history.value("SELECT number FROM pulls WHERE is_open = 1"),
        sha=store_with_history.value("SELECT head_sha FROM pulls WHERE is_open = 1"),
        night=store_with_history.value("SELECT head_sha FROM jobs WHERE event = 'nightly'"),
        guid=store_with_history.value("SELECT guid FROM deliveries WHERE event = 'push'"),
        **job_addresses(lambda sql: store_with_history.connection.execute(sql).fetchone()),
    )
    views = SqlViews(
        cast("Database", store_with_history), FixedAllowlists(), (UPSTREAM,), ingests=True, sandbox=True
    )
    app = Starlette(routes=routes(Frame(views, upstreams=(UPSTREAM,), clock=ManualClock(NOW))))
    store_with_history.queries.clear()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://relay", follow_redirects=True
    ) as reader:
        assert (await reader.get(path)).status_code == 200
    assert store_with_history.queries
    assert {
        sql: steps
        for sql, params in store_with_history.queries
        if (steps := scanning_steps(store_with_history.connection, sql, params))
    } == {}


async def test_in_tree_checks_are_compared_with_few_queries_that_scan_no_table(tmp_path: Path) -> None:
    async with store_rows.open_store_rows(tmp_path, on_postgresql=False) as store:
        base = BaseHistory(store)
        for position in range(1, 31):
            sha = base.place(position, title=f"Change (#{100 + position})", number=100 + position)
            checks = [
                InTreeCheck(1, f"test {query_count}", 7, 9, "success" if position < 20 else "failure", None)
                for query_count in range(200)
            ]
            store.in_tree(sha, *checks, packed=position < 25)
        store.pull(119, is_open=0, merged=1)
        store.pull(700, merge_base=sha_of(18))
        store.in_tree(f"{700:040x}", *checks)
        base.push(10, "success", hours_ago=9, downstream="big/backend")
        base.push(22, "failure", hours_ago=8, downstream="big/backend")
        recorded_store = StoreWithHistory(tmp_path / "crcr.db")
        views = SqlViews(cast("Database", recorded_store), FixedAllowlists(), (store_rows.UPSTREAM,))
        culprits = await views.culprits(
            CulpritQuery(upstream=store_rows.UPSTREAM, limit=150), store.clock.now()
        )
        assert len(culprits) == 150
        query_count = len(recorded_store.queries)
        await views.pull(store_rows.UPSTREAM, 700, store.clock.now())
        await views.commit(store_rows.UPSTREAM, sha_of(30), store.clock.now())
    queries = [
        (sql, params) for sql, params in recorded_store.queries if "in_tree" in sql or "base_commits" in sql
    ]
    assert {
        sql: steps
        for sql, params in queries
        if (steps := scanning_steps(recorded_store.connection, sql, params))
    } == {}
    assert query_count < 25
