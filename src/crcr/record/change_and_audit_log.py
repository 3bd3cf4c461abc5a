"""Rows that accompany a fact in its own transaction: live changes for pages, and the audit log."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.record.schema.main_tables import audit, changes
from crcr.record.store.database import Tx
from crcr.record.store.signals import CHANGES
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_INSERT_CHANGE = Statement(inserting(changes, "upstream", "kind", "downstream", "delivery", "number", "at"))
_INSERT_NUMBERED = Statement(
    inserting(changes, "upstream", "kind", "number", "at").returning(changes.c.change_id)
)
_DROP_CHANGE = Statement(text("DELETE FROM changes WHERE change_id = :change_id"))
_INSERT_ACT = Statement(inserting(audit, "upstream", "at", "who", "act", "subject", "detail"))


async def note_change(
    tx: Tx,
    upstream: RepoName,
    kind: str,
    *,
    now: datetime,
    downstream: str | None = None,
    delivery: str | None = None,
    number: int | None = None,
) -> None:
    """Add to the change log, from which open pages are updated."""
    change = {
        "upstream": upstream.key,
        "kind": kind,
        "downstream": downstream,
        "delivery": delivery,
        "number": number,
        "at": to_us(now),
    }
    await tx.many(_INSERT_CHANGE, [change])
    tx.signal(CHANGES)


async def replace_change(
    tx: Tx, upstream: RepoName, kind: str, *, now: datetime, number: int | None, former: int | None
) -> int:
    """Add a change in place of a former one about the same, so that the log does not grow; return its id.

    A reader that has not read the former one yet reads the new one.
    """
    [row] = await tx.all(_INSERT_NUMBERED, upstream=upstream.key, kind=kind, number=number, at=to_us(now))
    if former is not None:
        await tx.run(_DROP_CHANGE, change_id=former)
    tx.signal(CHANGES)
    change_id: int = row["change_id"]
    return change_id


async def note_act(
    tx: Tx, upstream: RepoName, *, who: str, act: str, subject: str, now: datetime, **detail: Any
) -> None:
    """Write an administrative act, or an alarm, into the audit log."""
    await tx.run(
        _INSERT_ACT,
        upstream=upstream.key,
        at=to_us(now),
        who=who,
        act=act,
        subject=subject,
        detail=json.dumps(detail),
    )
