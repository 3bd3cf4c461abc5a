"""A program that inserts rows into `chdb:///folder` and queries them: JSON in, JSON out.

One process can hold only one engine, and the test process must hold none.
"""

import asyncio
import json
import sys
from typing import Any

from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.history import ClickHouseHistory
from crcr.record.clickhouse.tables import TABLES, ensure_schema
from crcr.record.store.times import from_us


async def run_queries(request: dict[str, Any]) -> dict[str, Any]:
    link = ClickHouseLink(ClickHouseLocation(request["url"]))
    await ensure_schema(link, 365)
    for table in TABLES:
        if rows := request["rows"].get(table.name):
            await link.insert(table.name, table.columns, rows)
    history, figures = ClickHouseHistory(link), {}
    for kind in ResultKind:
        window = Window.of(Span.QUARTER, from_us(request["now"]))
        figures[kind.value] = await history.figures(request["upstream"], kind, window)
    await link.close()
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run_queries(json.load(sys.stdin)))))
