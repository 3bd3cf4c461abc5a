"""ClickHouse's three tables: their columns, the rows made from facts of the main store, and their creation.

The sorting key of a row is the fact's identity and its time, so that a query about a window reads only that window. A
fact that moves in time leaves a row behind that no longer counts (`ended_as` empty, `sent` 0). Of the rows with one key
the one with the largest `version` is valid. Neither bodies nor quoted failures of tests are fed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from crcr.decide.statistics.window import ResultKind, result_kind
from crcr.errors import NotPossible
from crcr.record.clickhouse.connection import ClickHouseLink
from crcr.record.schema.main_tables import dispatches, jobs
from crcr.record.schema.statistics import ingested
from crcr.record.store.database import Row

_RESULT = (
    *("upstream", "downstream", "delivery", "workflow_name", "run_id", "attempt", "job_name", "event"),
    *("number", "head_sha", "level", "state", "conclusion", "disputed_conclusion", "expected", "ended_as"),
    *("completed_at", "queue_s", "execution_s", "url"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
_JOB = (
    *("workflow", "in_progress_at", "first_conclusion", "verification"),
    *("late", "disputed", "superseded", "unsigned"),
)
_DISPATCH = (
    *("upstream", "downstream", "delivery", "event", "number", "head_sha", "level", "test"),
    *("created_at", "sent_at", "delay_s"),
)

JOB_FACTS = tuple(jobs.c[name] for name in (*_RESULT, *_JOB))
DISPATCH_FACTS = tuple(dispatches.c[name] for name in _DISPATCH)
INGESTED_FACTS = tuple(
    ingested.c[name] for name in (*_RESULT, "check_run", "started_at", "seen_at", "origin")
)


_TEXT, _ENUM, _NUMBER, _FLAG = "String", "LowCardinality(String)", "Nullable(Int64)", "UInt8"
_MOMENT, _SECONDS = "DateTime64(6, 'UTC')", "Nullable(Float64)"
_OPTIONAL_MOMENT = f"Nullable({_MOMENT})"
_TESTS = {f"tests_{outcome}": _NUMBER for outcome in ("passed", "failed", "skipped", "total")}
_MARKS = ("late", "disputed", "superseded", "unsigned")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistoryTable:
    """One table: `at` is its time column, `order` its sorting key, `gone` the values of a row that no longer counts."""

    name: str
    columns: Mapping[str, str]
    order: tuple[str, ...]
    at: str
    gone: Mapping[str, Any]
    make: Callable[[Row], dict[str, Any] | None] = field(repr=False)

    def rows(self, fact: Row, version: int, was_us: int = 0) -> list[list[Any]]:
        """The row of the fact, and a row that no longer counts for its time before, if that has changed."""
        values = self.make(fact)
        if values is None:
            return []
        time_us = values[self.at]
        rows = [values] if time_us is not None else []
        if was_us and was_us != time_us:
            rows.append({**values, self.at: was_us, **self.gone})
        return [[{**row, "version": version}[name] for name in self.columns] for row in rows]


def _job(fact: Row) -> dict[str, Any] | None:
    kind = result_kind(fact["event"])
    if kind is None:
        return None
    return {
        **_result(fact),
        "kind": kind.value,
        "workflow": fact["workflow"],
        "began_at": fact["in_progress_at"],
        "first_conclusion": fact["first_conclusion"] or "",
        "verification": fact["verification"],
        **{name: fact[name] for name in _MARKS},
    }


def _dispatch(fact: Row) -> dict[str, Any] | None:
    kind = result_kind(fact["event"])
    if kind is None or fact["test"]:
        return None
    same = ("upstream", "downstream", "delivery", "event", "number", "level", "created_at", "sent_at")
    return {
        **{name: fact[name] for name in same},
        "kind": kind.value,
        "head_sha": fact["head_sha"] or "",
        "delay_s": fact["delay_s"] or 0.0,
        "sent": 1,
    }


def _ingested(fact: Row) -> dict[str, Any]:
    return {
        **_result(fact),
        "kind": ResultKind.INGESTED.value,
        "workflow": fact["workflow_name"],
        "check_run": fact["check_run"],
        "began_at": fact["seen_at"] if fact["started_at"] is None else fact["started_at"],
        "origin": fact["origin"],
    }


def _result(fact: Row) -> dict[str, Any]:
    """The columns that our own jobs and other relays' results have in common."""
    optional_texts = ("conclusion", "disputed_conclusion", "expected", "ended_as", "head_sha", "url")
    same = ("upstream", "downstream", "delivery", "workflow_name", "run_id", "attempt", "job_name", "event")
    more = ("number", "level", "state", "completed_at", "queue_s", "execution_s", *_TESTS)
    return {name: fact[name] for name in (*same, *more)} | {name: fact[name] or "" for name in optional_texts}


_RESULT_COLUMNS = {
    "event": _ENUM,
    "number": _NUMBER,
    "head_sha": _TEXT,
    "level": "Nullable(Int8)",
    "state": _ENUM,
    **dict.fromkeys(("conclusion", "disputed_conclusion", "expected", "ended_as"), _ENUM),
    "completed_at": _OPTIONAL_MOMENT,
    "queue_s": _SECONDS,
    "execution_s": _SECONDS,
    **_TESTS,
    "url": _TEXT,
}
_BACKEND_COLUMNS = {"upstream": _ENUM, "downstream": _ENUM, "kind": _ENUM}
_RUN = {"delivery": _TEXT, "workflow": _TEXT, "run_id": _TEXT, "attempt": "Int32", "job_name": _TEXT}

JOBS = HistoryTable(
    name="crcr_jobs",
    columns={
        **_BACKEND_COLUMNS,
        "began_at": _MOMENT,
        **_RUN,
        "workflow_name": _TEXT,
        **_RESULT_COLUMNS,
        "first_conclusion": _ENUM,
        "verification": _ENUM,
        **dict.fromkeys(_MARKS, _FLAG),
        "version": "UInt64",
    },
    order=(*_BACKEND_COLUMNS, "began_at", *_RUN),
    at="began_at",
    gone={"ended_as": ""},
    make=_job,
)
INGESTED = HistoryTable(
    name="crcr_ingested",
    columns={
        **_BACKEND_COLUMNS,
        "began_at": _MOMENT,
        "delivery": _TEXT,
        "workflow": _TEXT,
        "job_name": _TEXT,
        "check_run": _TEXT,
        "workflow_name": _TEXT,
        "run_id": _TEXT,
        "attempt": "Int32",
        **_RESULT_COLUMNS,
        "origin": _ENUM,
        "version": "UInt64",
    },
    order=(*_BACKEND_COLUMNS, "began_at", "delivery", "workflow", "job_name", "check_run"),
    at="began_at",
    gone={"ended_as": ""},
    make=_ingested,
)
DISPATCHES = HistoryTable(
    name="crcr_dispatches",
    columns={
        **_BACKEND_COLUMNS,
        "sent_at": _MOMENT,
        "delivery": _TEXT,
        "event": _ENUM,
        "number": _NUMBER,
        "head_sha": _TEXT,
        "level": "Int8",
        "created_at": _MOMENT,
        "delay_s": "Float64",
        "sent": _FLAG,
        "version": "UInt64",
    },
    order=(*_BACKEND_COLUMNS, "sent_at", "delivery"),
    at="sent_at",
    gone={"sent": 0},
    make=_dispatch,
)
TABLES = (JOBS, DISPATCHES, INGESTED)


log = structlog.get_logger(__name__)

VERSION = 1
_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS crcr_schema (version UInt32, made_at DateTime('UTC') DEFAULT now('UTC'))"
    " ENGINE = ReplacingMergeTree(made_at) ORDER BY version"
)
_DAYS = re.compile(r"TTL .*toIntervalDay\((\d+)\)")


async def ensure_schema(link: ClickHouseLink, keep_days: int | None) -> None:
    """Create missing tables and set the retention. Every step may be repeated, so several processes may run it at once.

    No cluster is named: a single server, a replicated database and ClickHouse Cloud each choose their own engine.
    """
    await link.command(_VERSIONS)
    known = await schema_version(link)
    if known > VERSION:
        raise NotPossible(
            f"ClickHouse's tables are of schema {known}, and this release knows {VERSION}",
            hint="a newer release made them: use that one, or another database",
        )
    for table in TABLES:
        await link.command(_create_table(table, keep_days))
    if known < VERSION:
        await link.command(f"INSERT INTO crcr_schema (version) VALUES ({VERSION})")  # noqa: S608  our own number
        log.info("history_schema_made", version=VERSION)
    for table in TABLES:
        if await kept_days(link, table) != keep_days:
            ttl = f"MODIFY TTL {_ttl(table, keep_days)}" if keep_days else "REMOVE TTL"
            await link.command(f"ALTER TABLE {table.name} {ttl}")
            log.info("history_kept_days", table=table.name, days=keep_days)


async def schema_version(link: ClickHouseLink) -> int:
    """The version of the schema that exists; 0 for none."""
    tables = await link.query(
        "SELECT count() AS number FROM system.tables WHERE database = currentDatabase() AND name = 'crcr_schema'"
    )
    if not tables[0]["number"]:
        return 0
    version: int = (await link.query("SELECT max(version) AS version FROM crcr_schema"))[0]["version"]
    return version


async def kept_days(link: ClickHouseLink, table: HistoryTable) -> int | None:
    sql = "SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = {name:String}"
    tables = await link.query(sql, name=table.name)
    days = _DAYS.search(tables[0]["engine_full"]) if tables else None
    return int(days[1]) if days else None


def _create_table(table: HistoryTable, keep_days: int | None) -> str:
    columns = ", ".join(f"{name} {type_}" for name, type_ in table.columns.items())
    ttl = f" TTL {_ttl(table, keep_days)}" if keep_days else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) ENGINE = ReplacingMergeTree(version)"
        f" PARTITION BY toYYYYMM({table.at}) ORDER BY ({', '.join(table.order)}){ttl}"
    )


def _ttl(table: HistoryTable, keep_days: int | None) -> str:
    return f"toDateTime({table.at}) + INTERVAL {keep_days} DAY"
