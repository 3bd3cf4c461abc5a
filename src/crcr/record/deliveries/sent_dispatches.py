"""Dispatches that were sent, written down and counted together.

A dispatch counts once, where it was sent last: one that is replayed, or sent twice by two who both thought that
they held it, moves there.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.statistics.window import result_kind
from crcr.record.clickhouse.feed_queue import note_dispatch
from crcr.record.statistics import sums
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_KNOWN = Statement(
    text(
        "SELECT upstream, event, head_sha, level, test, state, attempted_at, sent_at, delay_s FROM dispatches"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
    )
)
_SENT = Statement(
    text(
        "UPDATE dispatches SET state = 'sent', sent_at = :sent_at, delay_s = :delay_s, reason = NULL"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
    )
)


async def mark_sent(
    tx: Tx, where: Mapping[str, Any], at: datetime, now: datetime, *, waited_since: datetime
) -> Row | None:
    """Record that the dispatch was sent, and return its row; `waited_since` is the earliest time it could have been sent."""
    known = await tx.one(_KNOWN, **where)
    if known is not None:
        await _mark(tx, where, known, to_us(at), (at - waited_since).total_seconds())
        note_dispatch(tx, where, now, was_us=known["sent_at"])
    return known


async def mark_arrived(
    tx: Tx, where: Mapping[str, Any], now: datetime, *, waited_since: datetime | None = None
) -> None:
    """The newest attempt to send it turns out to have arrived."""
    known = await tx.one(_KNOWN, **where)
    if known is not None and known["state"] != "sent":
        at_us = known["attempted_at"]
        delay_s = 0.0 if at_us is None or waited_since is None else (at_us - to_us(waited_since)) / 1e6
        await _mark(tx, where, known, at_us, delay_s)
        note_dispatch(tx, where, now, was_us=known["sent_at"])


async def _mark(tx: Tx, where: Mapping[str, Any], known: Row, at_us: int | None, delay_s: float) -> None:
    waited_s = max(0.0, delay_s)  # two machines' clocks may disagree
    await tx.run(_SENT, sent_at=at_us, delay_s=waited_s, **where)
    kind = None if known["test"] else result_kind(known["event"])
    if kind is None:
        return
    backend = {"upstream": where["upstream"], "downstream": where["downstream"], "kind": kind}
    if known["sent_at"] is not None:
        before_s = known["delay_s"] or 0.0
        sums.add_sent(tx, **backend, at_us=known["sent_at"], delay_s=before_s, times=-1)
    if at_us is not None:
        sums.add_sent(tx, **backend, at_us=at_us, delay_s=waited_s)
