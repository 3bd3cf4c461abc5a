"""ClickHouse's tables, made and kept by us; safe when several processes start at once, since every step may be repeated.

No cluster is named: a single server, a replicated database and ClickHouse Cloud each choose their engine for it.
"""

import re

import structlog

from crcr.errors import NotPossible
from crcr.record.clickhouse.connection import ClickHouseLink
from crcr.record.clickhouse.rows import TABLES, HistoryTable

log = structlog.get_logger(__name__)

VERSION = 1
_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS crcr_schema (version UInt32, made_at DateTime('UTC') DEFAULT now('UTC'))"
    " ENGINE = ReplacingMergeTree(made_at) ORDER BY version"
)
_DAYS = re.compile(r"TTL .*toIntervalDay\((\d+)\)")


async def ensure_schema(link: ClickHouseLink, keep_days: int | None) -> None:
    """Make what is missing, and keep rows for so long as is set now."""
    await link.command(_VERSIONS)
    known = await schema_version(link)
    if known > VERSION:
        raise NotPossible(
            f"ClickHouse's tables are of schema {known}, and this release knows {VERSION}",
            hint="a newer release made them: use that one, or another database",
        )
    for table in TABLES:
        await link.command(_made(table, keep_days))
    if known < VERSION:
        await link.command(f"INSERT INTO crcr_schema (version) VALUES ({VERSION})")  # noqa: S608  our own number
        log.info("history_schema_made", version=VERSION)
    for table in TABLES:
        if await kept_days(link, table) != keep_days:
            ttl = f"MODIFY TTL {_ttl(table, keep_days)}" if keep_days else "REMOVE TTL"
            await link.command(f"ALTER TABLE {table.name} {ttl}")
            log.info("history_kept_days", table=table.name, days=keep_days)


async def schema_version(link: ClickHouseLink) -> int:
    """Which schema is there; 0 for none."""
    there = await link.ask(
        "SELECT count() AS number FROM system.tables WHERE database = currentDatabase() AND name = 'crcr_schema'"
    )
    if not there[0]["number"]:
        return 0
    found: int = (await link.ask("SELECT max(version) AS version FROM crcr_schema"))[0]["version"]
    return found


async def kept_days(link: ClickHouseLink, table: HistoryTable) -> int | None:
    asked = (
        "SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = {name:String}"
    )
    found = await link.ask(asked, name=table.name)
    days = _DAYS.search(found[0]["engine_full"]) if found else None
    return int(days[1]) if days else None


def _made(table: HistoryTable, keep_days: int | None) -> str:
    columns = ", ".join(f"{name} {of}" for name, of in table.columns.items())
    ttl = f" TTL {_ttl(table, keep_days)}" if keep_days else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) ENGINE = ReplacingMergeTree(version)"
        f" PARTITION BY toYYYYMM({table.at}) ORDER BY ({', '.join(table.order)}){ttl}"
    )


def _ttl(table: HistoryTable, keep_days: int | None) -> str:
    return f"toDateTime({table.at}) + INTERVAL {keep_days} DAY"
