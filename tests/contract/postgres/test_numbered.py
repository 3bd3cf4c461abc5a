"""Every statement that can be batched returns the same rows when they carry the number of their query."""

import importlib
import pkgutil
from collections.abc import Iterator

import asyncpg
import pytest

import crcr.record
from crcr.record.store.postgres.batching import _numbered
from crcr.record.store.postgres.parameter_arrays import (
    ParameterArrays,
    insert_over_arrays,
    select_over_arrays,
    update_over_arrays,
)
from crcr.record.store.statement import Statement, SumUpsert
from support.services.postgres import new_database


def statements() -> dict[str, Statement]:
    by_name: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(crcr.record.__path__, "crcr.record."):
        if module.name.startswith("crcr.record.migrations"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for number, statement in enumerate(statements_in(value)):
                by_name[f"{module.name}.{name}.{number}"] = statement
    return by_name


def statements_in(value: object) -> Iterator[Statement]:
    if isinstance(value, Statement):
        yield value
    elif isinstance(value, SumUpsert):
        yield value.statement
    elif isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from statements_in(item)


async def columns_and_parameters(
    connection: "asyncpg.Connection[asyncpg.Record]", sql: str
) -> tuple[list[tuple[str, str]], list[str]]:
    prepared = await connection.prepare(sql)
    columns = [(column.name, column.type.name) for column in prepared.get_attributes()]
    return columns, [parameter.name for parameter in prepared.get_parameters()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_numbered_statement_keeps_columns_and_parameters_and_adds_the_number() -> None:
    all_statements = statements()
    assert len(all_statements) > 300
    connection = await asyncpg.connect(new_database())
    not_numbered = set()
    for name, statement in all_statements.items():
        compiled = statement.for_dialect("postgresql")
        numbered = _numbered(compiled.sql, len(compiled.order) + 1)
        if numbered is None:
            not_numbered.add(name)
            continue
        columns, parameters = await columns_and_parameters(connection, compiled.sql)
        assert len({column for column, _ in columns}) == len(columns), name
        expected = ([*columns, ("query_number", "int4")], [*parameters, "int4"])
        assert await columns_and_parameters(connection, numbered) == expected, name
    await connection.close()
    not_numbered_views = {name for name in not_numbered if name.startswith("crcr.record.views.")}
    assert len(not_numbered_views) == 32  # read by pages, and by the leader that searches for breakages
    assert not_numbered - not_numbered_views == {
        "crcr.record.levels.measures._LEFT_OUT.0",  # once a day for each backend
        "crcr.record.outbox.claims._CLAIM.0",
        "crcr.record.outbox.claims._NEXT_DUE.0",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_statement_over_arrays_keeps_columns_and_takes_parameters_as_arrays() -> None:
    connection, arrays = await asyncpg.connect(new_database()), ParameterArrays()
    rewritten: dict[str, set[str]] = {"SELECT": set(), "INSERT": set(), "UPDATE": set()}
    for name, statement in statements().items():
        sql = statement.for_dialect("postgresql").sql
        columns, parameters = await columns_and_parameters(connection, sql)
        array_types = [f"{parameter}[]" for parameter in parameters]
        joined_types = [
            "text" if parameter in {"text", "varchar"} else f"{parameter}[]" for parameter in parameters
        ]
        for kind, rewrite in (
            ("SELECT", select_over_arrays),
            ("INSERT", insert_over_arrays),
            ("UPDATE", update_over_arrays),
        ):
            if (forms := await arrays.forms(connection, rewrite, sql)) is None:
                continue
            result = [*columns, ("query_number", "int8")] if kind == "SELECT" else columns
            assert await columns_and_parameters(connection, forms.arrays) == (result, array_types), name
            assert await columns_and_parameters(connection, forms.joined) == (result, joined_types), name
            rewritten[kind].add(name)
    await connection.close()
    assert {
        "crcr.record.jobs.report_context._DISPATCH_AND_JOBS.0",
        "crcr.record.jobs.report_context._JOBS.0",
        "crcr.record.jobs.reports._STANDING_ROWS.0",
    } <= rewritten["SELECT"]
    assert {
        "crcr.record.change_and_audit_log._INSERT_CHANGE.0",
        "crcr.record.clickhouse.feed_queue._UNFED.0",
        "crcr.record.jobs.outcomes._OPEN.0",
    } <= rewritten["INSERT"]
    assert {"crcr.record.jobs.outcomes._CLOSE.0"} <= rewritten["UPDATE"]
    assert not {"crcr.record.clickhouse.feed_queue._EFFECT.0"} & rewritten["INSERT"]
