"""A test may reuse the database of an earlier test: it is then like a new one."""

from support.services.postgres import drop_database, empty_database, new_database, run_on

_ADD = "INSERT INTO audit (upstream, at, who, act, subject, detail) VALUES ('', 1, '', '', '', '') RETURNING audit_id"


def test_an_emptied_database_has_no_rows_and_numbers_them_from_one() -> None:
    url = new_database()
    assert run_on(url, _ADD) == run_on(new_database(), _ADD)
    assert empty_database(url)
    assert run_on(url, "SELECT count(*) AS number FROM audit") == [{"number": 0}]
    assert run_on(url, "SELECT pg_relation_size('audit') AS bytes") == [{"bytes": 0}]
    assert run_on(url, _ADD) == [{"audit_id": 1}]
    assert run_on(url, "SELECT count(*) AS number FROM alembic_version") == [{"number": 1}]


def test_a_database_whose_schema_was_changed_is_not_used_again() -> None:
    for change in (
        "DROP INDEX ix_jobs_running",
        "ALTER TABLE audit ALTER COLUMN subject DROP NOT NULL",
        "CREATE TABLE notes (a text)",
        "UPDATE alembic_version SET version_num = '9999'",
        "DROP TABLE alembic_version",
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    ):
        url = new_database()
        run_on(url, change)
        assert not empty_database(url), change
    drop_database(url)
    assert not empty_database(url)
