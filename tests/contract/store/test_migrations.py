"""The migrations lead to the schema of the code and run once, whichever process starts first."""

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError

from crcr.decide.checks.gate import GatePolicy, GateState, judge_gate
from crcr.decide.checks.verification import awaits_github
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.model import RepoName
from crcr.errors import StoreUnavailable
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.checks.commit_facts import load_commit
from crcr.record.migrations.run import _on_postgres, alembic_config, head, is_known, migrate
from crcr.record.schema.all_tables import metadata
from crcr.record.store.database import DatabaseLocation, PostgresLocation
from crcr.record.store.times import from_us
from support.services.postgres import new_database
from support.stores.tables import open_handle, open_table_engine
from support.upgrades.database import write_database


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_the_migrations_lead_to_the_schema_of_the_code(tmp_path: Path) -> None:
    assert migrate(tmp_path / "crcr.db") == (None, head())
    engine = create_engine(f"sqlite:///{tmp_path / 'crcr.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_migration_file_names_are_alembic_revisions() -> None:
    steps = ScriptDirectory.from_config(alembic_config(None))
    assert steps.get_current_head() == head()
    assert all(is_known(step.revision) for step in steps.walk_revisions())
    assert not is_known("9999")


def test_importing_all_tables_alone_registers_every_table(tmp_path: Path) -> None:
    """`crcr migrate --from` copies the tables of `metadata`: one that is missing there would be left behind."""
    migrate(tmp_path / "crcr.db")
    with closing(sqlite3.connect(tmp_path / "crcr.db")) as connection:
        named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        tables = {row[0] for row in connection.execute(named)} - {"alembic_version"}
    code = "from crcr.record.schema.all_tables import metadata; print(*metadata.tables)"
    known = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(known.split()) == tables


def test_migrating_again_changes_nothing_and_keeps_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO upstreams (upstream, name, created_at) VALUES ('a/b', 'A/B', 0)")
        connection.commit()
        assert migrate(path) == (head(), head())
        assert connection.execute("SELECT name FROM upstreams").fetchall() == [("A/B",)]


def test_of_concurrent_migrations_one_runs_and_all_return_the_head(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        revisions = list(pool.map(migrate, [tmp_path / "crcr.db"] * 4))
    assert revisions.count((None, head())) == 1
    assert {after for _, after in revisions} == {head()}


def test_a_migration_waits_for_a_process_that_writes_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    path.touch()
    with ThreadPoolExecutor(1) as pool, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        migration = pool.submit(migrate, path)
        with pytest.raises(TimeoutError):
            migration.result(timeout=0.3)
        other.execute("COMMIT")
        assert migration.result() == (None, head())


def test_a_file_that_is_no_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    path.write_text("this is a letter to my grandmother, and not a database at all\n" * 20)
    with pytest.raises(StoreUnavailable):
        migrate(path)
    assert path.read_text().startswith("this is a letter")


def test_every_table_except_application_wide_ones_has_an_upstream_column() -> None:
    without = {table.name for table in metadata.sorted_tables if "upstream" not in table.c}
    assert without == {
        "recovered",
        "watermarks",
        "refused_webhooks",
        "webhook_bodies",
        "builds",
        "sandbox_jobs",
        "leaders",
        "feeding",
        "imports",
    }


# Migrations from the first schema

AT = 1_767_225_600_000_000
UP, DOWN, HEAD, GUID = "pytorch-like/core", "org/gating", "a" * 40, "00000000-0000-0000-0000-000000000001"
DISPATCH_KEY = {"delivery": GUID, "upstream": UP, "downstream": DOWN}
RUN_COLUMNS = {**DISPATCH_KEY, "workflow": "ci.yml", "run_id": "7", "workflow_name": "CI"}
JOB_COLUMNS = {
    **RUN_COLUMNS,
    "reported_name": "build",
    "job_name": "build",
    "level": 4,
    "event": "pull_request",
    "number": 1,
    "head_sha": HEAD,
    "in_progress_at": AT,
    "completed_at": AT,
    "silent_at": AT,
    "state": "completed",
    "trusted": "{}",
    "untrusted": b"{}",
}
PULL_COLUMNS = {"upstream": UP, "number": 1, "head_sha": HEAD}
FIRST_SCHEMA_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("upstreams", {"upstream": UP, "name": UP, "created_at": AT}),
    ("repositories", {"upstream": UP, "downstream": DOWN, "name": "Org/Gating", "repository_id": 5}),
    (
        "pulls",
        {
            **PULL_COLUMNS,
            "updated_at": AT,
            "is_open": 1,
            "draft": 0,
            "labels": "[]",
            "base_ref": "main",
            "title": "Fix it",
            "author": "ann",
        },
    ),
    (
        "deliveries",
        {
            **PULL_COLUMNS,
            "guid": GUID,
            "event": "pull_request",
            "action": "opened",
            "state": "accepted",
            "source": "webhook",
            "received_at": AT,
            "body_bytes": 2,
            "body": b"{}",
        },
    ),
    (
        "dispatches",
        {
            **DISPATCH_KEY,
            **PULL_COLUMNS,
            "level": 4,
            "state": "sent",
            "event": "pull_request",
            "action": "opened",
            "lane": "pull/1",
            "created_at": AT,
            "attempted_at": AT,
            "sent_at": AT,
        },
    ),
    ("runs", {**RUN_COLUMNS, "issuer": "github", "first_seen_at": AT}),
    ("jobs", {**JOB_COLUMNS, "attempt": 1, "conclusion": "failure"}),
    ("jobs", {**JOB_COLUMNS, "attempt": 2, "conclusion": "success"}),
    (
        "jobs",
        {**JOB_COLUMNS, "attempt": 1, "job_name": "test", "reported_name": "test", "conclusion": "success"},
    ),
]
"""Rows of one pull request under the first schema: its run failed once and passed the second time."""
LISTED = "L4:\n  - Org/Gating: {oncalls: [bob], jobs: [build, test]}\n"


@pytest.fixture(params=["sqlite", "postgresql"])
def first_schema_database(request: pytest.FixtureRequest, tmp_path: Path) -> DatabaseLocation:
    """A database of the first schema, with rows."""
    if request.param == "sqlite":
        location: DatabaseLocation = tmp_path / "crcr.db"
        engine = create_engine(f"sqlite:///{location}")
        with engine.begin() as connection:
            insert_first_schema_rows(connection)
        engine.dispose()
    else:
        location = PostgresLocation(new_database(empty=True))
        _on_postgres(location, insert_first_schema_rows)
    return location


def insert_first_schema_rows(connection: Connection) -> None:
    command.upgrade(alembic_config(connection), "0001")
    for table, row in FIRST_SCHEMA_ROWS:
        columns, placeholders = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({placeholders})"), row)  # noqa: S608


def test_every_row_of_the_first_schema_survives_the_migrations(
    first_schema_database: DatabaseLocation,
) -> None:
    assert migrate(first_schema_database) == ("0001", head())
    with open_table_engine(first_schema_database).begin() as connection:
        for table, row in FIRST_SCHEMA_ROWS:
            where = " AND ".join(f"{name} = :{name}" for name in row)
            result = connection.execute(text(f"SELECT count(*) FROM {table} WHERE {where}"), row)  # noqa: S608
            assert result.scalar() == 1, table


async def test_rows_of_the_first_schema_are_judged_like_new_rows(
    first_schema_database: DatabaseLocation,
) -> None:
    migrate(first_schema_database)
    database, allowlist = open_handle(first_schema_database), read_allowlist(LISTED).allowlist
    assert allowlist is not None
    now = from_us(AT) + timedelta(hours=1)
    commit = await database.read(lambda tx: load_commit(tx, RepoName(UP), HEAD, allowlist, now))
    await database.close()
    [backend] = commit.subjects[0].backends

    assert [(job.name, job.attempt, job.conclusion) for job in backend.counted_jobs] == [
        *(("build", 2, "success"), ("test", 1, "success"))
    ]
    assert [(run.attempt, run.over) for run in backend.runs] == [(2, False)]
    policy = GatePolicy(gate_timeout=timedelta(hours=8), job_timeout=timedelta(hours=6))
    # GitHub has not confirmed the results yet, so the gate waits for it.
    assert judge_gate(commit, policy, now).state is GateState.PENDING
    assert awaits_github(backend, late=False)


@pytest.mark.parametrize(("base", "known"), [("main", True), ("stack", False)])
async def test_a_head_that_was_dispatched_for_another_base_is_in_doubt(
    first_schema_database: DatabaseLocation, base: str, known: bool
) -> None:
    body = compress_body(json.dumps({"pull_request": {"base": {"ref": base}}}).encode())
    with open_table_engine(first_schema_database).begin() as connection:
        connection.execute(text("UPDATE deliveries SET body = :body"), {"body": body})
        connection.execute(text("UPDATE pulls SET base_ref = 'main'"))
    migrate(first_schema_database)
    database, allowlist = open_handle(first_schema_database), read_allowlist(LISTED).allowlist
    assert allowlist is not None
    now = from_us(AT) + timedelta(hours=1)
    commit = await database.read(lambda tx: load_commit(tx, RepoName(UP), HEAD, allowlist, now))
    await database.close()

    assert [subject.in_doubt for subject in commit.subjects] == [not known]


# Migrations from the release before bisections

_BISECTION = {
    "upstream": UP, "downstream": DOWN, "workflow": "ci.yml", "job_name": "build", "ref": "main", "commits": "[]",
    "flake_rate": 0.01, "most_runs": 12, "who": "ada", "created_at": AT, "ends_at": AT, "left_good": 0, "left_bad": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_of_revision_0011_keeps_its_rows_and_gets_the_tables_of_bisections(
    kind: str, tmp_path: Path
) -> None:
    location = tmp_path / "crcr.db" if kind == "sqlite" else PostgresLocation(new_database(empty=True))
    write_database(location, "0011", FIRST_SCHEMA_ROWS)
    assert migrate(location) == ("0011", head())
    columns, placeholders = ", ".join(_BISECTION), ", ".join(f":{name}" for name in _BISECTION)
    insert = text(f"INSERT INTO bisections ({columns}, state) VALUES ({placeholders}, :state)")  # noqa: S608
    engine = open_table_engine(location)
    with engine.begin() as connection:
        for table, row in FIRST_SCHEMA_ROWS:
            where = " AND ".join(f"{name} = :{name}" for name in row)
            result = connection.execute(text(f"SELECT count(*) FROM {table} WHERE {where}"), row)  # noqa: S608
            assert result.scalar() == 1, table
        for state in ("finished", "finished", "running"):
            connection.execute(insert, {**_BISECTION, "state": state})
    with pytest.raises(IntegrityError), engine.begin() as connection:  # a job has one running bisection
        connection.execute(insert, {**_BISECTION, "state": "running"})
    engine.dispose()
