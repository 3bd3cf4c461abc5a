"""The schema's history leads to the schema, once, whoever starts first."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from crcr.errors import StoreUnavailable
from crcr.record import schema_gate  # noqa: F401 - its tables are part of the metadata
from crcr.record.migrate import head, migrate
from crcr.record.schema import metadata


def test_the_steps_lead_to_the_schema_that_the_code_has(tmp_path: Path) -> None:
    assert migrate(tmp_path / "crcr.db") == (None, head())
    engine = create_engine(f"sqlite:///{tmp_path / 'crcr.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_migrating_again_changes_nothing_and_keeps_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO upstreams (upstream, name, created_at) VALUES ('a/b', 'A/B', 0)")
        connection.commit()
        assert migrate(path) == (head(), head())
        assert connection.execute("SELECT name FROM upstreams").fetchall() == [("A/B",)]


def test_of_processes_that_start_at_once_one_migrates_and_all_find_it_done(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(migrate, [tmp_path / "crcr.db"] * 4))
    assert found.count((None, head())) == 1
    assert {after for _, after in found} == {head()}


def test_a_file_that_is_no_database_is_told_so_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    path.write_text("this is a letter to my grandmother, and not a database at all\n" * 20)
    with pytest.raises(StoreUnavailable):
        migrate(path)
    assert path.read_text().startswith("this is a letter")


def test_every_table_but_those_of_the_whole_app_has_the_upstream_in_its_keys_or_its_rows() -> None:
    without = {table.name for table in metadata.sorted_tables if "upstream" not in table.c}
    assert without == {"recovered", "watermarks"}
