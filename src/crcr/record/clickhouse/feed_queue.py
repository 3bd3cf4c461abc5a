"""Noting what ClickHouse has to be told: in the transaction of every fact that moves the sums, at its very end.

Where nothing is fed (`feeding` holds no `since`) nothing is written. One effect for an upstream is enough, however
many facts wait for it; it gathers them for a moment, since ClickHouse wants few inserts and large ones.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import EffectKind
from crcr.record.schema.clickhouse_feed import Mark
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Adding, Statement
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
_IS_FED = f"EXISTS (SELECT 1 FROM feeding WHERE name = '{Mark.SINCE}')"  # noqa: S608  our own
# What commutes and can wait for the end of the transaction: just as the sums do.
_UNFED = Adding(
    "unfed",
    Statement(text(f"INSERT INTO unfed ({', '.join(_COLUMNS)}) SELECT {_VALUES} WHERE {_IS_FED}")),
    _COLUMNS,
    {},
)
_WAITS = (
    "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :target AND lane = '' AND kind = :kind"
    " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
)


def _adding(waits: str) -> str:
    return (
        "INSERT INTO effects (upstream, kind, target, lane, state, due_at, created_at)"
        " SELECT :upstream, :kind, :target, '', 'waiting', CAST(:due_at AS bigint), CAST(:created_at AS bigint)"
        f" WHERE {_IS_FED} AND NOT EXISTS ({waits})"
    )


# The waiting one is held until our commit: claimed before it, it would not see what is noted here.
_EFFECT = Adding(
    "unfed_effect",
    Statement(text(_adding(_WAITS)), on_postgresql=text(_adding(f"{_WAITS} FOR SHARE"))),
    ("upstream", "kind", "target", "due_at", "created_at"),
    {},
)


def note_job(tx: Tx, key: Mapping[str, Any], now: datetime) -> None:
    """A job has ended, or counts elsewhere than before."""
    run = (key["workflow"], key["run_id"], key["attempt"], key["job_name"])
    _note(tx, JOB, key, (*run, "", 0), now)


def note_dispatch(tx: Tx, key: Mapping[str, Any], now: datetime, *, was_us: int | None) -> None:
    """A dispatch was sent; `was_us` is when it had been sent before."""
    _note(tx, DISPATCH, key, ("", "", 0, "", "", was_us or 0), now)


def note_ingested(tx: Tx, row: Row, now: datetime, *, was_us: int | None) -> None:
    """A result of another relay; `was_us` is when it was thought to have begun."""
    job = (row["workflow_name"], "", 0, row["job_name"], row["check_run"])
    _note(tx, INGESTED, row, (*job, was_us or 0), now)


def note_effect(tx: Tx, upstream: str, at_us: int, due_us: int) -> None:
    """Have what is unfed of an upstream fed, if anything is fed at all."""
    tx.add_up(_EFFECT, (upstream, _FEED, TARGET, due_us, at_us), {})


def _note(tx: Tx, kind: str, key: Mapping[str, Any], rest: tuple[Any, ...], now: datetime) -> None:
    at_us, upstream = to_us(now), key["upstream"]
    tx.add_up(_UNFED, (kind, upstream, key["downstream"], key["delivery"], *rest, at_us + _GATHER_US), {})
    # Of a whole second, so that all who share a commit want the same one.
    second = at_us - at_us % 1_000_000
    note_effect(tx, upstream, second, second + _GATHER_US)
