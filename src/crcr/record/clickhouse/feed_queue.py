"""Queueing facts for ClickHouse: in the transaction of every fact that changes the sums, at its very end.

Without ClickHouse (`feeding` holds no `since`) nothing is written. One effect for an upstream is enough for any number
of facts; it runs 2 s later, since ClickHouse wants few large inserts.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import EffectKind
from crcr.record.schema.statistics import FeedMark
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, SumUpsert
from crcr.record.store.times import to_us

_GATHER_US = 2_000_000
TARGET = "history"
JOB, DISPATCH, INGESTED = "job", "dispatch", "ingested"
_FEED = EffectKind.FEED_HISTORY.value

_COLUMNS = (
    *("kind", "upstream", "downstream", "delivery", "workflow", "run_id"),
    *("attempt", "job_name", "check_run", "was_at", "due_at"),
)
_NUMBERS = {"attempt": "integer", "was_at": "bigint", "due_at": "bigint"}
_VALUES = ", ".join(f"CAST(:{n} AS {_NUMBERS[n]})" if n in _NUMBERS else f":{n}" for n in _COLUMNS)
FED_SINCE = f"SELECT 1 FROM feeding WHERE name = '{FeedMark.SINCE}'"  # noqa: S608  our own
"""Has a row where facts are queued; a unit that has read this in its transaction need not queue without it."""
_IS_FED = f"EXISTS ({FED_SINCE})"
# These inserts commute and are written at the end of the transaction, like the sums.
_UNFED = SumUpsert(
    "unfed",
    Statement(text(f"INSERT INTO unfed ({', '.join(_COLUMNS)}) SELECT {_VALUES} WHERE {_IS_FED}")),
    _COLUMNS,
    {},
)
_WAITING_EFFECT = (
    "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :target AND lane = '' AND kind = :kind"
    " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
)


def _add_effect(waiting: str) -> str:
    return (
        "INSERT INTO effects (upstream, kind, target, lane, state, due_at, created_at)"
        " SELECT :upstream, :kind, :target, '', 'waiting', CAST(:due_at AS bigint), CAST(:created_at AS bigint)"
        f" WHERE {_IS_FED} AND NOT EXISTS ({waiting})"
    )


# The waiting effect is locked until our commit: claimed before it, it would not see our facts.
_EFFECT = SumUpsert(
    "unfed_effect",
    Statement(
        text(_add_effect(_WAITING_EFFECT)), on_postgresql=text(_add_effect(f"{_WAITING_EFFECT} FOR SHARE"))
    ),
    ("upstream", "kind", "target", "due_at", "created_at"),
    {},
)


def note_job(tx: Tx, key: Mapping[str, Any], now: datetime, *, was_us: int = 0) -> None:
    """Queue a job that has ended, or counts elsewhere than before; `was_us` is when it had begun before, if that changed."""
    run = (key["workflow"], key["run_id"], key["attempt"], key["job_name"])
    _queue_fact(tx, JOB, key, (*run, "", was_us), now)


def note_dispatch(tx: Tx, key: Mapping[str, Any], now: datetime, *, was_us: int | None) -> None:
    """Queue a dispatch that was sent; `was_us` is the time when it had been sent before."""
    _queue_fact(tx, DISPATCH, key, ("", "", 0, "", "", was_us or 0), now)


def note_ingested(tx: Tx, row: Row, now: datetime, *, was_us: int | None) -> None:
    """Queue a result of another relay; `was_us` is the start time that was recorded before."""
    job = (row["workflow_name"], "", 0, row["job_name"], row["check_run"])
    _queue_fact(tx, INGESTED, row, (*job, was_us or 0), now)


def note_effect(tx: Tx, upstream: str, at_us: int, due_us: int) -> None:
    """Add the effect that feeds an upstream's queued facts, where ClickHouse is in use."""
    tx.add_up(_EFFECT, (upstream, _FEED, TARGET, due_us, at_us), {})


def _queue_fact(tx: Tx, kind: str, key: Mapping[str, Any], rest: tuple[Any, ...], now: datetime) -> None:
    at_us, upstream = to_us(now), key["upstream"]
    tx.add_up(_UNFED, (kind, upstream, key["downstream"], key["delivery"], *rest, at_us + _GATHER_US), {})
    # A whole second, so that all units of a commit add the same effect.
    second = at_us - at_us % 1_000_000
    note_effect(tx, upstream, second, second + _GATHER_US)
