"""Values for the metrics of every scrape: queues by kind, facts for alarms, and how far ClickHouse is behind.

The cost does not depend on the size of the tables: each statement reads a partial index of open effects, or one end of an
index.
"""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.overview import AlarmFacts, EffectQueue
from crcr.record.clickhouse.feeder import mark
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

# Deliveries that the relay made itself do not prove that webhooks arrive.
LAST_DELIVERY = Statement(
    text(
        "SELECT received_at AS at FROM deliveries WHERE upstream = :upstream AND source <> 'test'"
        " AND source <> 'bisection' AND source <> 'pair' ORDER BY received_at DESC LIMIT 1"
    )
)
# States are written out here, not bound: a partial index is used only where its condition can be seen.
_OPEN = Statement(
    text(
        "SELECT kind, state, count(*) AS number, min(due_at) AS oldest FROM effects WHERE upstream = :upstream"
        " AND state IN ('waiting', 'claimed') GROUP BY kind, state"
    )
)
_PARKED = Statement(
    text(
        "SELECT kind, count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked' GROUP BY kind"
    )
)
_PAUSED = Statement(text("SELECT paused_at FROM upstreams WHERE upstream = :upstream"))
_NEWEST_LIST = Statement(
    text("SELECT good FROM allowlist_versions WHERE upstream = :upstream ORDER BY version DESC LIMIT 1")
)
_OVERDUE_GATE = Statement(
    text(
        "SELECT min(recheck_at) AS at FROM gates WHERE recheck_at IS NOT NULL AND recheck_at <= :now"
        " AND upstream = :upstream"
    )
)


async def read_queues(tx: Tx, upstream: RepoName, now: datetime) -> tuple[EffectQueue, ...]:
    """The queues that hold something, by kind."""
    counts_by_kind: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    for row in await tx.all(_OPEN, upstream=upstream.key):
        kind = row["kind"]
        counts_by_kind.setdefault(kind, {})[row["state"]] = row["number"]
        oldest[kind] = min(row["oldest"], oldest.get(kind, row["oldest"]))
    for row in await tx.all(_PARKED, upstream=upstream.key):
        counts_by_kind.setdefault(row["kind"], {})["parked"] = row["number"]
    return tuple(
        EffectQueue(kind=kind, lag_s=age_s(oldest.get(kind), now), **counts)
        for kind, counts in sorted(counts_by_kind.items())
    )


async def read_alarm_facts(tx: Tx, upstream: RepoName, now: datetime) -> AlarmFacts:
    paused = await tx.one(_PAUSED, upstream=upstream.key)
    newest = await tx.one(_NEWEST_LIST, upstream=upstream.key)
    gate = await tx.one(_OVERDUE_GATE, upstream=upstream.key, now=to_us(now))
    return AlarmFacts(
        paused=bool(paused and paused["paused_at"]),
        allowlist_bad=bool(newest and not newest["good"]),
        last_delivery_s=age_s(_read_time(await tx.one(LAST_DELIVERY, upstream=upstream.key)), now),
        gate_overdue_s=age_s(_read_time(gate), now) or 0.0,
    )


def age_s(at_us: int | None, now: datetime) -> float | None:
    """The age of a time; None without one, and for a time in the future."""
    if at_us is None or from_us(at_us) > now:
        return None
    return (now - from_us(at_us)).total_seconds()


def _read_time(row: Row | None) -> int | None:
    return row["at"] if row else None


# How many facts are not in ClickHouse yet, and how long the oldest of them has been due.

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
