"""How an effect enters the outbox: always inside the transaction of the fact that wants it.

`target` is the unit of isolation (one effect of a target is under way at a time, a slow one holds up nobody
else); `lane` is the unit of order inside it (the events of one pull request arrive in their order).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import EffectKind, EffectState, RepoName
from crcr.record.database import Tx
from crcr.record.schema import effects
from crcr.record.signals import EFFECTS
from crcr.record.statement import Statement, inserting
from crcr.record.times import to_us

_ADD = Statement(
    inserting(
        effects, "upstream", "kind", "target", "lane", "delivery", "payload", "state", "due_at", "created_at"
    )
)
# Beside a waiting one of the same lane: whatever it was to do, it will do with the newest facts.
_ADD_ONCE = Statement(
    text(
        "INSERT INTO effects (upstream, kind, target, lane, delivery, payload, state, due_at, created_at)"
        " SELECT :upstream, :kind, :target, :lane, :delivery, :payload, :state, :due_at, :created_at"
        " WHERE NOT EXISTS (SELECT 1 FROM effects WHERE upstream = :upstream AND target = :target"
        " AND lane = :lane AND kind = :kind AND state IN ('waiting', 'claimed') AND state = 'waiting')"
    )
)
_HASTEN = Statement(
    text(
        "UPDATE effects SET due_at = :due_at WHERE upstream = :upstream AND target = :target AND lane = :lane"
        " AND kind = :kind AND state IN ('waiting', 'claimed') AND state = 'waiting' AND due_at > :due_at"
    )
)


def effect_row(
    upstream: RepoName | str,
    kind: EffectKind,
    *,
    target: str,
    lane: str,
    now: datetime,
    delivery: str | None = None,
    payload: bytes | None = None,
) -> dict[str, Any]:
    at = to_us(now)
    return {
        "upstream": upstream if isinstance(upstream, str) else upstream.key,
        "kind": kind.value,
        "target": target,
        "lane": lane,
        "delivery": delivery,
        "payload": payload,
        "state": EffectState.WAITING.value,
        "due_at": at,
        "created_at": at,
    }


async def add_once(tx: Tx, *rows: dict[str, Any]) -> None:
    """Add effects that look at the present when they are done: one that waits already is enough, and is hastened."""
    for row in rows:
        await tx.run(_ADD_ONCE, **row)
        await tx.run(
            _HASTEN, **{name: row[name] for name in ("upstream", "kind", "target", "lane", "due_at")}
        )
    tx.signal(EFFECTS)


async def add_effects(tx: Tx, rows: Iterable[dict[str, Any]]) -> None:
    await tx.many(_ADD, rows)
    tx.signal(EFFECTS)
