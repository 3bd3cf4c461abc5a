"""Rows that accompany a fact in its own transaction: live changes for pages, and the audit log."""

import json
from datetime import datetime
from typing import Any

from crcr.decide.model import RepoName
from crcr.record.schema.main_tables import audit, changes
from crcr.record.store.database import Tx
from crcr.record.store.signals import CHANGES
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_INSERT_CHANGE = Statement(inserting(changes, "upstream", "kind", "downstream", "delivery", "number", "at"))
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
