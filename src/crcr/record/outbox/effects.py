"""Adding effects to the outbox, always in the transaction of the fact that calls for them.

`target` is the unit of isolation (one effect of a target is in flight at a time, so a slow target delays no other);
`lane` is the unit of order inside it (the events of one pull request arrive in their order).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.model import EffectKind, EffectState, RepoName
from crcr.record.schema.main_tables import effects
from crcr.record.store.database import Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_ADD = Statement(
    inserting(
        effects, "upstream", "kind", "target", "lane", "delivery", "payload", "state", "due_at", "created_at"
    )
)
_SAME_QUEUE = (
    "upstream = :upstream AND target = :target AND lane = :lane AND kind = :kind"
    " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
)
# An effect that GitHub's rate limit holds back is never brought forward: it would only be held back again.
_LATER = f"{_SAME_QUEUE} AND due_at > :soon AND held_by IS NULL"
# A locked row is being brought forward or claimed by another transaction: do not wait for it, insert another effect.
_BRING_FORWARD = Statement(
    text(f"UPDATE effects SET due_at = :due_at WHERE {_LATER}"),  # noqa: S608
    on_postgresql=text(
        "UPDATE effects SET due_at = :due_at WHERE effect_id IN"  # noqa: S608
        f" (SELECT effect_id FROM effects WHERE {_LATER} FOR UPDATE SKIP LOCKED)"
    ),
)
_ADD_ONCE = (
    "INSERT INTO effects (upstream, kind, target, lane, delivery, payload, state, due_at, created_at)"  # noqa: S608
    " SELECT :upstream, :kind, :target, :lane, :delivery, {payload}, 'waiting', CAST(:due_at AS bigint),"
    f" CAST(:created_at AS bigint) WHERE NOT EXISTS (SELECT 1 FROM effects WHERE {_SAME_QUEUE}"
    " AND (due_at <= :soon OR held_by IS NOT NULL) {lock})"
)


def insert_unless_waiting(condition: str = "") -> Statement:
    """Build the statement that adds an effect unless one of its lane waits already; `condition` is one more, as SQL.

    The waiting effect is locked until our commit: claimed before it, it would not see our facts.
    """
    return Statement(
        text(_ADD_ONCE.format(payload=":payload", lock="") + condition),
        on_postgresql=text(_ADD_ONCE.format(payload="CAST(:payload AS bytea)", lock="FOR SHARE") + condition),
    )


_ADD_UNLESS_WAITING = insert_unless_waiting()
_BEGUN_BEFORE = (
    f"{_SAME_QUEUE} AND due_at > :soon"
    " AND (first_attempt_at <= :begun_before OR (first_attempt_at IS NULL AND held_by IS NULL))"
)
# An effect that is held back restarts as well, so that its first attempts are quick, but keeps its due time.
_RESTARTED = "first_attempt_at = NULL, due_at = CASE WHEN held_by IS NULL THEN :due_at ELSE due_at END"
_RESTART = Statement(
    text(f"UPDATE effects SET {_RESTARTED} WHERE {_BEGUN_BEFORE}"),  # noqa: S608
    on_postgresql=text(
        f"UPDATE effects SET {_RESTARTED} WHERE effect_id IN"  # noqa: S608
        f" (SELECT effect_id FROM effects WHERE {_BEGUN_BEFORE} FOR UPDATE SKIP LOCKED)"
    ),
)
_SOON_US = 1_000_000
"""A smaller gain is not worth the lock of a row that many rely on: clocks of two machines differ by as much."""
_QUEUE = ("upstream", "kind", "target", "lane", "due_at")


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


async def add_once(tx: Tx, *rows: dict[str, Any], insert: Statement = _ADD_UNLESS_WAITING) -> None:
    """Add effects that read the current facts when they run, unless one waits already; that one is brought forward.

    `insert` is a statement of `insert_unless_waiting`; the rows hold the parameters of its condition as well.

    A waiting effect of the same lane will use the newest facts. One that GitHub's rate limit holds back is enough as
    well, and keeps its due time.
    """
    if not rows:
        return
    with_soon = [{**row, "soon": row["due_at"] + _SOON_US} for row in rows]
    await tx.many(_BRING_FORWARD, ({name: row[name] for name in (*_QUEUE, "soon")} for row in with_soon))
    await tx.many(insert, with_soon)
    tx.signal(EFFECTS)


async def add_paced(tx: Tx, row: dict[str, Any], pace: timedelta) -> None:
    """Add an effect like `add_once`; but a waiting one that was begun less than `pace` ago keeps its due time.

    So the same few attempts serve any number of facts within that time.
    """
    pace_us = pace // timedelta(microseconds=1)
    queue = {name: row[name] for name in _QUEUE}
    soon, begun_before = row["due_at"] + _SOON_US, row["created_at"] - pace_us
    await tx.run(_RESTART, **queue, soon=soon, begun_before=begun_before)
    await tx.many(_ADD_UNLESS_WAITING, [{**row, "soon": row["due_at"] + pace_us}])
    tx.signal(EFFECTS)


async def add_effects(tx: Tx, rows: Iterable[dict[str, Any]]) -> None:
    await tx.many(_ADD, rows)
    tx.signal(EFFECTS)
