"""Dispatches in their table, each with the effect that sends it.

Written and dropped here, always inside the caller's transaction; what is held is let go in `held_rows`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.dispatch.plan import Drop, PlannedDispatch
from crcr.decide.events import MergeGroupEvent, PullRequestEvent, PushEvent
from crcr.decide.model import DispatchState, EffectKind, KnownPull, Level, RepoName
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.record.schema.core import dispatches, repositories
from crcr.record.statistics.recount import heads_before, recount
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_REF_CHARS = 500
# The id, because the name may belong to another repository when somebody asks whose dispatch it was.
_DISPATCH = Statement(
    inserting(
        dispatches,
        *("upstream", "delivery", "downstream", "level", "state", "reason"),
        *("event", "action", "number", "head_sha", "lane", "created_at", "concerned"),
    ).values(
        repository_id=select(repositories.c.repository_id)
        .where(
            repositories.c.upstream == bindparam("upstream"),
            repositories.c.downstream == bindparam("downstream"),
        )
        .scalar_subquery()
    )
)
# Whether a result can be held against GitHub's view is decided here: what is taken away later changes nothing.
_READS_ACTIONS = Statement(
    text(
        "UPDATE dispatches SET reads_actions = (SELECT r.reads_actions FROM repositories r"
        " WHERE r.upstream = dispatches.upstream AND r.downstream = dispatches.downstream)"
        " WHERE delivery = :delivery AND upstream = :upstream AND level >= 4"
    )
)
# The same head on another base is another head: what it changes there is something else.
_OTHER_HEAD = (
    "(head_sha <> :head_sha OR EXISTS (SELECT 1 FROM deliveries b WHERE b.guid = dispatches.delivery"
    " AND b.upstream = dispatches.upstream AND b.base_ref <> :base_ref))"
)
_DROP = Statement(
    text(
        "UPDATE dispatches SET state = 'cancelled', reason = :reason, superseded_at = :at"  # noqa: S608  our own words
        " WHERE upstream = :upstream AND number = :number AND superseded_at IS NULL"
        " AND state IN ('held', 'waiting', 'parked')"
        f" AND action <> 'closed' AND (:any_head = 1 OR {_OTHER_HEAD})"
        # What is in doubt may be newer still: GitHub's answer decides about it.
        " AND NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.guid = dispatches.delivery"
        " AND v.upstream = dispatches.upstream AND v.state = 'in_doubt')"
        " RETURNING delivery, downstream, lane"
    )
)
_SUPERSEDE = Statement(
    text(
        "UPDATE dispatches SET superseded_at = :at"  # noqa: S608  our own words
        " WHERE upstream = :upstream AND number = :number"
        # Of those still held only a doubt is left, and its head may be the newest of all.
        f" AND superseded_at IS NULL AND {_OTHER_HEAD} AND state <> 'held'"
    )
)
# `state IN (...)` beside `state = ...` names the partial index over open effects to the planner.
_DROP_EFFECT = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at, last_error = :reason WHERE upstream = :upstream"
        " AND target = :downstream AND lane = :lane AND delivery = :delivery AND kind = 'send_dispatch'"
        " AND state IN ('waiting', 'claimed') AND state = 'waiting'"
    )
)
_DROP_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at, last_error = :reason"
        " WHERE upstream = :upstream AND state = 'parked' AND kind = 'send_dispatch' AND EXISTS (SELECT 1 FROM dispatches d"
        " WHERE d.delivery = effects.delivery AND d.upstream = effects.upstream AND d.downstream = effects.target"
        " AND d.number = :number AND d.state = 'cancelled')"
    )
)
_DROP_DELIVERY = Statement(
    text(
        "UPDATE dispatches SET state = 'cancelled', reason = :reason, superseded_at = :at WHERE upstream = :upstream"
        " AND delivery = :delivery AND state IN ('held', 'waiting', 'parked')"
        " RETURNING delivery, downstream, lane"
    )
)


def lane_of(event: PullRequestEvent | PushEvent | MergeGroupEvent) -> str:
    if isinstance(event, PullRequestEvent):
        return f"pull/{event.number}"
    # Cut, since an index holds it: two refs that begin with so much alike may wait for each other.
    return (
        f"group/{event.head_sha}" if isinstance(event, MergeGroupEvent) else f"ref/{event.ref[:_REF_CHARS]}"
    )


async def write_dispatches(
    tx: Tx, shared: Mapping[str, Any], planned: tuple[PlannedDispatch, ...], now: datetime
) -> None:
    """Record one dispatch a target, and the effects of those that need not wait; `shared` is the rest of their row."""
    rows = [
        {
            **shared,
            "downstream": each.entry.name.key,
            "level": int(each.entry.level),
            "state": str(each.state),
            "reason": each.reason,
            "concerned": None if each.concerned is None else int(each.concerned),
        }
        for each in planned
    ]
    if rows:
        await tx.many(_DISPATCH, rows)
    if any(row["level"] >= Level.L4 for row in rows):
        await tx.run(_READS_ACTIONS, delivery=shared["delivery"], upstream=shared["upstream"])
    await send(tx, shared["upstream"], [row for row in rows if row["state"] == DispatchState.WAITING], now)


async def send(tx: Tx, upstream: str, rows: list[Any], now: datetime) -> None:
    if not rows:
        return
    shared = effect_row(upstream, EffectKind.SEND_DISPATCH, target="", lane="", now=now)
    await add_effects(
        tx,
        [
            {**shared, "target": row["downstream"], "lane": row["lane"], "delivery": row["delivery"]}
            for row in rows
        ],
    )


async def drop_unsent(
    tx: Tx, upstream: RepoName, pull: KnownPull, drop: Drop, now: datetime, *, cause: str | None = None
) -> None:
    """Cancel what is pointless now before it is sent, and mark what was sent for an older head or another base.

    `cause` is said instead of the new head, where that is not what is new.
    """
    closed = drop is Drop.ALL_BUT_CLOSED
    where = {"upstream": upstream.key, "number": pull.number, "at": to_us(now)}
    head = {"head_sha": pull.head_sha, "base_ref": pull.base_ref}
    reason = "the pull request was closed" if closed else cause or f"superseded by {pull.head_sha[:12]}"
    counted = await heads_before(tx, upstream, pull, any_head=closed)
    dropped = await tx.all(_DROP, any_head=int(closed), reason=reason, **head, **where)
    await _drop_effects(tx, upstream, dropped, reason, now)
    await tx.run(_DROP_PARKED, reason=reason, **where)
    await tx.run(_SUPERSEDE, **head, **where)
    for delivery in counted:
        await recount(tx, {"upstream": upstream.key, "delivery": delivery}, now)


async def drop_delivery(tx: Tx, upstream: RepoName, delivery: str, reason: str, now: datetime) -> None:
    """Cancel what is unsent of one delivery."""
    where = {"upstream": upstream.key, "delivery": delivery, "reason": reason, "at": to_us(now)}
    dropped = await tx.all(_DROP_DELIVERY, **where)
    await _drop_effects(tx, upstream, dropped, reason, now)
    if dropped:
        await recount(tx, where, now)


async def _drop_effects(tx: Tx, upstream: RepoName, dropped: list[Row], reason: str, now: datetime) -> None:
    shared = {"upstream": upstream.key, "reason": reason, "at": to_us(now)}
    if dropped:
        await tx.many(_DROP_EFFECT, ({**row, **shared} for row in dropped))
