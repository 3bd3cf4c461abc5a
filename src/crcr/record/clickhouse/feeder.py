"""Feeds ClickHouse: makes its tables ready, inserts what is unfed, and crosses it off when it was taken.

Killed between the two it inserts the same rows again, with the same versions; nothing is counted twice.
"""

from datetime import datetime

from crcr.record.clickhouse.connection import ClickHouseLink
from crcr.record.clickhouse.feed_state import Feeding
from crcr.record.clickhouse.rows import TABLES
from crcr.record.clickhouse.schema import ensure_schema

_HIGHEST = " UNION ALL ".join(f"SELECT max(version) AS version FROM {each.name}" for each in TABLES)  # noqa: S608  ours


class ClickHouseFeeder:
    def __init__(self, feeding: Feeding, link: ClickHouseLink, keep_days: int | None) -> None:
        self._feeding = feeding
        self._link = link
        self._keep_days = keep_days
        self._ready = False

    async def make_ready(self) -> None:
        """Make the tables, set how long they keep, and number on from what they hold; once in a process."""
        if self._ready:
            return
        await ensure_schema(self._link, self._keep_days)
        highest = await self._link.ask_patiently(_HIGHEST)
        await self._feeding.outnumber(max(row["version"] for row in highest))
        self._ready = True

    async def feed(self, upstream: str, most: int) -> int:
        batch = await self._feeding.batch(upstream, most)
        for table, rows in batch.rows:
            await self._link.insert(table.name, table.columns, rows)
        if batch.seqs:
            await self._feeding.fed(upstream, batch)
        return len(batch.seqs)

    async def again(self, upstream: str, now: datetime, due_at: datetime) -> None:
        await self._feeding.again(upstream, now, due_at)
