"""How far ClickHouse is behind: how many facts it has not been told, and how long the oldest of them has been due."""

from datetime import datetime

from sqlalchemy import text

from crcr.record.clickhouse.feeder import mark
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

_MOST = 100_000
"""More are not counted."""
_UNFED = Statement(
    text(
        "SELECT count(*) AS number FROM (SELECT 1 FROM unfed WHERE upstream = :upstream LIMIT :most) counted"
    )
)
_OLDEST = Statement(text("SELECT due_at FROM unfed WHERE upstream = :upstream ORDER BY seq LIMIT 1"))


async def history_lag(tx: Tx, upstream: str, now: datetime) -> tuple[int, float | None]:
    """The number and the lag in seconds, 0 while nothing is due; None where ClickHouse is not fed."""
    if await mark(tx, FeedMark.SINCE) is None:
        return 0, None
    counted = await tx.one(_UNFED, upstream=upstream, most=_MOST)
    oldest = await tx.one(_OLDEST, upstream=upstream)
    lag_s = (now - from_us(oldest["due_at"])).total_seconds() if oldest else 0.0
    return counted["number"] if counted else 0, max(0.0, lag_s)
