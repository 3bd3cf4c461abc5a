"""Compiled statements: bound parameters, and constants inlined in the SQL text."""

import pytest
from sqlalchemy import bindparam, select, update

from crcr.record.schema.main_tables import jobs
from crcr.record.store.statement import Statement

DIALECTS = pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])


@DIALECTS
def test_an_unnamed_constant_is_inlined_in_the_sql(dialect: str) -> None:
    """SQLite would prepare the statement again for each run, where the constant decides whether a partial index can be used."""
    query = select(jobs.c.state).where(jobs.c.state != "it's :done", jobs.c.superseded == 0)
    compiled = Statement(query).for_dialect(dialect)
    assert compiled.sql.endswith("WHERE jobs.state != 'it''s :done' AND jobs.superseded = 0")
    assert (compiled.constants, compiled.order) == ({}, ())


@DIALECTS
def test_named_parameters_are_bound(dialect: str) -> None:
    statement = update(jobs).values(state="completed", url=bindparam("new_url"))
    compiled = Statement(statement).for_dialect(dialect)
    assert compiled.sql.startswith("UPDATE jobs SET state='completed', url=")
    assert "new_url" in (compiled.order or compiled.sql)
    assert compiled.constants == {}
