"""The sums behind the numbers: what one job or one dispatch adds to its hour and its day, and takes away again.

Always called in the transaction of the fact. A job remembers in `ended_as` what it was added as, so that a later
fact (a newer attempt, a superseded commit, a dispute) moves it instead of counting it twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from crcr.decide.numbers import TIMED, Ended, bucket_of
from crcr.decide.window import Kind
from crcr.record.database import Tx
from crcr.record.schema_history import ENDED, EXECUTION, QUEUE, hours, job_days
from crcr.record.statement import Statement, inserting

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

_HOUR_SUMS = (*ENDED, "sent", "delay_sum_s", "queue_sum_s", "execution_sum_s", *QUEUE, *EXECUTION)
_DAY_SUMS = (*ENDED, "execution_sum_s", "execution_known")


def _adding(table: Table, sums: tuple[str, ...]) -> Statement:
    keys = [column.name for column in table.primary_key]
    insert = inserting(table, *(column.name for column in table.columns))
    added = {name: table.c[name] + insert.excluded[name] for name in sums}
    return Statement(insert.on_conflict_do_update(index_elements=keys, set_=added))


_ADD_HOUR = _adding(hours, _HOUR_SUMS)
_ADD_DAY = _adding(job_days, _DAY_SUMS)
_NO_HOUR = dict.fromkeys(_HOUR_SUMS, 0)
_NO_DAY = dict.fromkeys(_DAY_SUMS, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one ended job adds. `at_us`, when it began, decides on the hour and never changes."""

    upstream: str
    downstream: str
    kind: Kind
    at_us: int
    workflow: str
    workflow_name: str
    job_name: str
    ended: Ended
    queue_s: float | None
    execution_s: float | None


async def add(tx: Tx, share: Share, times: int = 1) -> None:
    """Add a share, or with -1 take it away."""
    await tx.run(_ADD_HOUR, **_hour_of(share, times))
    await tx.run(_ADD_DAY, **_day_of(share, times))


async def move(tx: Tx, moves: Iterable[tuple[Share, int]]) -> None:
    """Add and take away many at once, each row touched once."""
    by_hour: dict[tuple[Any, ...], dict[str, Any]] = {}
    by_day: dict[tuple[Any, ...], dict[str, Any]] = {}
    for share, times in moves:
        _gather(by_hour, _hour_of(share, times), _HOUR_SUMS)
        _gather(by_day, _day_of(share, times), _DAY_SUMS)
    if by_hour:
        await tx.many(_ADD_HOUR, by_hour.values())
        await tx.many(_ADD_DAY, by_day.values())


async def add_sent(
    tx: Tx, *, upstream: str, downstream: str, kind: Kind, at_us: int, delay_s: float, times: int = 1
) -> None:
    """Count a dispatch that was sent, and how long it had waited for that; with -1 take it away."""
    key = {"upstream": upstream, "downstream": downstream, "kind": kind.value}
    sent = {"sent": times, "delay_sum_s": times * delay_s}
    await tx.run(_ADD_HOUR, hour_at=at_us - at_us % HOUR_US, **key, **{**_NO_HOUR, **sent})


def _hour_of(share: Share, times: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        **_NO_HOUR,
        "upstream": share.upstream,
        "downstream": share.downstream,
        "kind": share.kind.value,
        "hour_at": share.at_us - share.at_us % HOUR_US,
        share.ended.value: times,
    }
    if share.ended in TIMED:
        if share.queue_s is not None:
            row["queue_sum_s"] = times * share.queue_s
            row[QUEUE[bucket_of(share.queue_s)]] = times
        if share.execution_s is not None and share.ended is not Ended.SILENT:
            row["execution_sum_s"] = times * share.execution_s
            row[EXECUTION[bucket_of(share.execution_s)]] = times
    return row


def _day_of(share: Share, times: int) -> dict[str, Any]:
    known = share.execution_s is not None and share.ended in TIMED and share.ended is not Ended.SILENT
    return {
        **_NO_DAY,
        "upstream": share.upstream,
        "downstream": share.downstream,
        "kind": share.kind.value,
        "day_at": share.at_us - share.at_us % DAY_US,
        "workflow": share.workflow,
        "job_name": share.job_name,
        "workflow_name": share.workflow_name,
        share.ended.value: times,
        "execution_sum_s": times * (share.execution_s or 0.0) if known else 0,
        "execution_known": times if known else 0,
    }


def _gather(into: dict[tuple[Any, ...], dict[str, Any]], row: dict[str, Any], sums: tuple[str, ...]) -> None:
    key = tuple(value for name, value in row.items() if name not in sums and name != "workflow_name")
    have = into.setdefault(key, row)
    if have is not row:
        for name in sums:
            have[name] += row[name]
