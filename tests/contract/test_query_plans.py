"""No statement of the store walks a table that grows: every plan is a search by a key or an index."""

import importlib
import pkgutil
import re
import sqlite3
from pathlib import Path

import pytest

import crcr.record
from crcr.record.migrate import migrate
from crcr.record.statement import Statement

GROWING = (
    *("deliveries", "dispatches", "runs", "jobs", "effects", "changes", "audit", "pulls"),
    *("checks", "gates", "waivers", "commands", "recovered", "merge_groups", "approvals"),
    *("hours", "job_days", "ingested"),
)
_QUERY = re.compile(r"\s*(SELECT|UPDATE|DELETE|WITH)", re.IGNORECASE)


def statements() -> list[tuple[str, Statement]]:
    found = []
    for module in pkgutil.iter_modules(crcr.record.__path__):
        if module.ispkg:
            continue
        for name, value in vars(importlib.import_module(f"crcr.record.{module.name}")).items():
            if isinstance(value, Statement) and _QUERY.match(value.for_dialect("sqlite").sql):
                found.append((f"{module.name}.{name}", value))
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    path = tmp_path_factory.mktemp("plans") / "crcr.db"
    migrate(Path(path))
    return sqlite3.connect(path)


@pytest.mark.parametrize(
    ("name", "statement"), statements(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_statement_searches_and_does_not_scan(
    name: str, statement: Statement, database: sqlite3.Connection
) -> None:
    sql = statement.for_dialect("sqlite").sql
    params = dict.fromkeys(re.findall(r":(\w+)", sql), "1")
    plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", params)]
    aliases = {alias for table, alias in re.findall(rf"\b({'|'.join(GROWING)})\s+(?:AS\s+)?(\w)\b", sql)}
    scans = [step for step in plan if step.startswith("SCAN") and step.split()[1] in {*GROWING, *aliases}]
    vague = [
        step
        for step in plan
        if re.search(r"SEARCH (dispatches|jobs|runs|d) USING .*\((upstream|delivery)=\?\)$", step)
        and "upstream=?)" in step
        and "ix_dispatches_unsent" not in step  # holds only what is still to be sent
    ]
    assert scans + vague == []
