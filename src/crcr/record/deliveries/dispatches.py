"""The table of dispatches: recorded, held, left out, released, sent and cancelled, always in the caller's transaction.

A waiting dispatch has an effect that sends it. A held one waits for an approval, the end of a draft or a list of changed
files, possibly for several of them in turn; so nothing releases it for one reason, and `hold_reason` is evaluated anew. One
that `labels` or `paths` left out is held first when they match after all: a label releases nothing that an approval holds.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist, TestedCommit
from crcr.decide.dispatch.plan import SUSPENDED, Drop, PlannedDispatch
from crcr.decide.dispatch.selection import LABELS, PATHS, hold_reason, is_trusted, left_out_by
from crcr.decide.events import MergeGroupEvent, PullRequestEvent, PushEvent
from crcr.decide.model import DispatchState, EffectKind, KnownPull, Level, RepoName
from crcr.decide.statistics.window import result_kind
from crcr.record.clickhouse.feed_queue import note_dispatch
from crcr.record.deliveries.pull_requests import find_newest_delivery, is_approved
from crcr.record.outbox.effects import add_effects, add_once, effect_row
from crcr.record.repositories.renames import find_listing
from crcr.record.schema.main_tables import dispatches, repositories
from crcr.record.statistics import sums
from crcr.record.statistics.recount_changed_jobs import find_superseded_deliveries, recount
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_REF_CHARS = 500
# The id is recorded because the name may belong to another repository later.
_DISPATCH = Statement(
    inserting(
        dispatches,
        *("upstream", "delivery", "downstream", "level", "state", "reason"),
        *(
            "event",
            "action",
            "number",
            "head_sha",
            "lane",
            "created_at",
            "concerned",
            "tests_merged",
            "downgraded",
        ),
    ).values(
        repository_id=select(repositories.c.repository_id)
        .where(
            repositories.c.upstream == bindparam("upstream"),
            repositories.c.downstream == bindparam("downstream"),
        )
        .scalar_subquery()
    )
)
# Whether GitHub's view of the run can be read is recorded now: a permission that is revoked later changes nothing.
_READS_ACTIONS = Statement(
    text(
        "UPDATE dispatches SET reads_actions = (SELECT r.reads_actions FROM repositories r"
        " WHERE r.upstream = dispatches.upstream AND r.downstream = dispatches.downstream)"
        " WHERE delivery = :delivery AND upstream = :upstream AND level >= 4"
    )
)
# The same commit on another base counts as another head: it changes other files there.
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
        # A delivery in doubt may be newer: GitHub's answer decides about it.
        " AND NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.guid = dispatches.delivery"
        " AND v.upstream = dispatches.upstream AND v.state = 'in_doubt')"
        " RETURNING delivery, downstream, lane"
    )
)
_SUPERSEDE = Statement(
    text(
        "UPDATE dispatches SET superseded_at = :at"  # noqa: S608  our own words
        " WHERE upstream = :upstream AND number = :number"
        # Those still held are of a delivery in doubt, whose head may be the newest.
        f" AND superseded_at IS NULL AND {_OTHER_HEAD} AND state <> 'held'"
    )
)
# `state IN (...)` beside `state = ...` lets the planner use the partial index of open effects.
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
_DROP_PARKED_EFFECT = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at, last_error = :reason WHERE upstream = :upstream"
        " AND state = 'parked' AND target = :downstream AND delivery = :delivery AND kind = 'send_dispatch'"
    )
)
_DROP_DELIVERY = Statement(
    text(
        "UPDATE dispatches SET state = 'cancelled', reason = :reason, superseded_at = :at WHERE upstream = :upstream"
        " AND delivery = :delivery AND state IN ('held', 'waiting', 'parked')"
        " RETURNING delivery, downstream, lane"
    )
)


def dispatch_lane(event: PullRequestEvent | PushEvent | MergeGroupEvent) -> str:
    if isinstance(event, PullRequestEvent):
        return f"pull/{event.number}"
    # Cut, because an index holds it: two refs with the same first 500 characters share a lane.
    return (
        f"group/{event.head_sha}" if isinstance(event, MergeGroupEvent) else f"ref/{event.ref[:_REF_CHARS]}"
    )


async def write_dispatches(
    tx: Tx, shared: Mapping[str, Any], planned: tuple[PlannedDispatch, ...], now: datetime
) -> None:
    """Record one dispatch per target, and effects for those that are not held; `shared` holds the common columns."""
    rows = [
        {
            **shared,
            "downstream": dispatch.entry.name.key,
            "level": int(dispatch.level),
            "state": str(dispatch.state),
            "reason": dispatch.reason,
            "concerned": None if dispatch.concerned is None else int(dispatch.concerned),
            "tests_merged": int(dispatch.entry.tests is TestedCommit.MERGE),
            "downgraded": int(dispatch.downgraded),
        }
        for dispatch in planned
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
    """Cancel unsent dispatches that are obsolete now, and mark sent ones of an older head or another base as superseded.

    `cause` is recorded as the reason when it is not a new head.
    """
    closed = drop is Drop.ALL_BUT_CLOSED
    where = {"upstream": upstream.key, "number": pull.number, "at": to_us(now)}
    head = {"head_sha": pull.head_sha, "base_ref": pull.base_ref}
    reason = "the pull request was closed" if closed else cause or f"superseded by {pull.head_sha[:12]}"
    counted = await find_superseded_deliveries(tx, upstream, pull, any_head=closed)
    dropped = await tx.all(_DROP, any_head=int(closed), reason=reason, **head, **where)
    await _drop_effects(tx, upstream, dropped, reason, now)
    await tx.run(_DROP_PARKED, reason=reason, **where)
    await tx.run(_SUPERSEDE, **head, **where)
    for delivery in counted:
        await recount(tx, {"upstream": upstream.key, "delivery": delivery}, now)


async def drop_delivery(tx: Tx, upstream: RepoName, delivery: str, reason: str, now: datetime) -> None:
    """Cancel the unsent dispatches of one delivery, those that are parked included."""
    where = {"upstream": upstream.key, "delivery": delivery, "reason": reason, "at": to_us(now)}
    dropped = await tx.all(_DROP_DELIVERY, **where)
    await _drop_effects(tx, upstream, dropped, reason, now)
    for row in dropped:
        await tx.run(_DROP_PARKED_EFFECT, downstream=row["downstream"], **where)
    if dropped:
        await recount(tx, where, now)


async def _drop_effects(tx: Tx, upstream: RepoName, dropped: list[Row], reason: str, now: datetime) -> None:
    shared = {"upstream": upstream.key, "reason": reason, "at": to_us(now)}
    if dropped:
        await tx.many(_DROP_EFFECT, ({**row, **shared} for row in dropped))


# Sent dispatches are recorded and counted together. A dispatch counts once, at the time when it was sent last: one that is
# replayed, or sent twice by two workers that both held it, moves there.

_SENT_BEFORE = Statement(
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
    known = await tx.one(_SENT_BEFORE, **where)
    if known is not None:
        await _mark(tx, where, known, to_us(at), (at - waited_since).total_seconds())
        note_dispatch(tx, where, now, was_us=known["sent_at"])
    return known


async def mark_arrived(
    tx: Tx, where: Mapping[str, Any], now: datetime, *, waited_since: datetime | None = None
) -> None:
    """Record that the latest attempt to send the dispatch arrived after all."""
    known = await tx.one(_SENT_BEFORE, **where)
    if known is not None and known["state"] != "sent":
        at_us = known["attempted_at"]
        delay_s = 0.0 if at_us is None or waited_since is None else (at_us - to_us(waited_since)) / 1e6
        await _mark(tx, where, known, at_us, delay_s)
        note_dispatch(tx, where, now, was_us=known["sent_at"])


async def _mark(tx: Tx, where: Mapping[str, Any], known: Row, at_us: int | None, delay_s: float) -> None:
    waited_s = max(0.0, delay_s)  # clocks of two machines may differ
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


_SELECT = (
    "SELECT d.delivery, d.downstream, d.lane, d.reason, d.action, d.head_sha, d.concerned, d.level, d.sent_at,"
    " d.repository_id, r.repository_id AS bound_id, v.base_ref FROM dispatches d LEFT JOIN repositories r"
    " ON r.upstream = d.upstream AND r.downstream = d.downstream"
    " LEFT JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
)
_HELD = Statement(
    text(
        f"{_SELECT}"
        " WHERE d.upstream = :upstream AND d.number = :number AND d.superseded_at IS NULL"
        " AND d.state = 'held' AND (CAST(:delivery AS TEXT) IS NULL OR d.delivery = :delivery)"
        " AND coalesce(v.state, '') <> 'in_doubt'"
        " ORDER BY d.created_at, d.delivery, d.downstream"
    )
)
_HELD_OF_DELIVERY = Statement(
    text(
        f"{_SELECT}"
        " WHERE d.upstream = :upstream AND d.delivery = :delivery AND d.state = 'held' ORDER BY d.downstream"
    )
)
_SET_STATE = Statement(
    text(
        "UPDATE dispatches SET state = :state, reason = :reason, superseded_at = :superseded_at WHERE upstream = :upstream"
        " AND delivery = :delivery AND downstream = :downstream AND state = 'held'"
    )
)
_CONCERNED = Statement(
    text(
        "UPDATE dispatches SET concerned = :concerned WHERE upstream = :upstream"
        " AND delivery = :delivery AND downstream = :downstream AND state = 'held'"
    )
)


async def find_held_of_pull(
    tx: Tx, upstream: RepoName, number: int, *, delivery: str | None = None
) -> list[Row]:
    """Held dispatches of a pull request, except those of a delivery in doubt."""
    return await tx.all(_HELD, upstream=upstream.key, number=number, delivery=delivery)


async def find_held_of_delivery(tx: Tx, upstream: RepoName, delivery: str) -> list[Row]:
    return await tx.all(_HELD_OF_DELIVERY, upstream=upstream.key, delivery=delivery)


async def reconsider_held(
    tx: Tx, upstream: RepoName, pull: KnownPull, allowlist: Allowlist, now: datetime
) -> None:
    """Release dispatches that have no reason to be held any more, and record the reason of the others."""
    released: list[Row] = []
    for row in await find_held_of_pull(tx, upstream, pull.number):
        listing = await find_listing(tx, upstream, allowlist, row)
        entry = listing.entry
        if entry is None and listing.unread:
            continue  # it may be listed under a new name, with options that are not known yet
        if entry is None:
            await _set_state(tx, upstream, row, DispatchState.CANCELLED, "left the allowlist")
            continue
        if row["action"] == "closed" and pull.is_open:
            # Sent now, together with the reopening, it would cancel the runs that the reopening starts.
            await _set_state(tx, upstream, row, DispatchState.CANCELLED, "the pull request was reopened")
            continue
        reason = hold_reason(
            entry,
            closed=row["action"] == "closed",
            draft=pull.draft,
            trusted=is_trusted(pull.author_association),
            approved=await is_approved(
                tx, upstream, pull.number, head_sha=row["head_sha"], base_ref=row["base_ref"]
            ),
            concerned=None if row["concerned"] is None else bool(row["concerned"]),
        )
        if reason is None:
            released.append(row)
        elif reason != row["reason"]:
            await _set_state(tx, upstream, row, DispatchState.HELD, reason)
    await release(tx, upstream, released, now)
    await request_changed_files(tx, upstream, pull.number, now)


async def request_changed_files(tx: Tx, upstream: RepoName, number: int, now: datetime) -> None:
    """Queue a request for the changed files of dispatches that are held for them."""
    held = await find_held_of_pull(tx, upstream, number)
    await request_files_of_deliveries(
        tx, upstream, {row["delivery"] for row in held if row["reason"] == PATHS}, now
    )


async def request_files_of_deliveries(tx: Tx, upstream: RepoName, guids: set[str], now: datetime) -> None:
    """Queue a request for the changed files of each of these deliveries."""
    for delivery in sorted(guids):
        lane = f"files/{delivery}"
        await add_once(
            tx,
            effect_row(
                upstream, EffectKind.ASK_FILES, target=upstream.key, lane=lane, delivery=delivery, now=now
            ),
        )


async def settle_files(tx: Tx, upstream: RepoName, rows: list[Row], concerned: frozenset[str]) -> None:
    """Record which dispatches the changed files concern, and leave out the others."""
    for row in rows:
        is_concerned = row["downstream"] in concerned
        await tx.run(_CONCERNED, concerned=int(is_concerned), **_dispatch_key(upstream, row))
        if not is_concerned:
            await _set_state(tx, upstream, row, DispatchState.LEFT_OUT, PATHS)


async def release(tx: Tx, upstream: RepoName, rows: list[Row], now: datetime) -> None:
    for row in rows:
        await _set_state(tx, upstream, row, DispatchState.WAITING, None)
    await send(tx, upstream.key, rows, now)


async def hold_for(tx: Tx, upstream: RepoName, rows: list[Row], reason: str) -> None:
    for row in rows:
        await _set_state(tx, upstream, row, DispatchState.HELD, reason)


async def leave_out(tx: Tx, upstream: RepoName, rows: list[Row], reason: str) -> None:
    for row in rows:
        await _set_state(tx, upstream, row, DispatchState.LEFT_OUT, reason)


async def drop_held(tx: Tx, upstream: RepoName, rows: list[Row], now: datetime) -> None:
    for row in rows:
        await _set_state(tx, upstream, row, DispatchState.CANCELLED, "superseded", superseded_at=to_us(now))


async def _set_state(
    tx: Tx,
    upstream: RepoName,
    row: Row,
    state: DispatchState,
    reason: str | None,
    *,
    superseded_at: int | None = None,
) -> None:
    await tx.run(
        _SET_STATE,
        state=state.value,
        reason=reason,
        superseded_at=superseded_at,
        **_dispatch_key(upstream, row),
    )


def _dispatch_key(upstream: RepoName, row: Row) -> dict[str, str]:
    return {"upstream": upstream.key, "delivery": row["delivery"], "downstream": row["downstream"]}


_LEFT_OUT = Statement(
    text(
        "SELECT d.delivery, d.downstream, d.reason, d.head_sha, d.level, d.sent_at, d.repository_id,"
        " r.repository_id AS bound_id, r.suspended_at FROM dispatches d"
        " JOIN deliveries v ON v.guid = d.delivery AND v.upstream = d.upstream"
        " LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.state = 'left_out' AND d.reason = :reason"
        " AND d.action <> 'closed' AND v.state = 'accepted' AND v.body IS NOT NULL"
        " ORDER BY d.downstream"
    )
)
_RESTORE = Statement(
    text(
        "UPDATE dispatches SET state = :state, reason = :reason, concerned = coalesce(:concerned, concerned),"
        " labels = :labels, superseded_at = NULL WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
        " AND state = 'left_out'"
    )
)


async def find_left_out_of_pull(tx: Tx, upstream: RepoName, pull: KnownPull, reason: str) -> list[Row]:
    """Dispatches that this option left out of the newest delivery of the pull request's head on its base."""
    if not pull.is_open:
        return []
    where = {"head_sha": pull.head_sha, "base_ref": pull.base_ref}
    newest = await find_newest_delivery(tx, upstream, pull.number, **where)
    if newest is None:
        return []
    return await tx.all(_LEFT_OUT, delivery=newest["guid"], upstream=upstream.key, reason=reason)


async def reconsider_left_out(
    tx: Tx, upstream: RepoName, pull: KnownPull, allowlist: Allowlist, now: datetime
) -> None:
    """Restore dispatches that the present labels select, and request the changed files where `paths` left some out."""
    for row in await find_left_out_of_pull(tx, upstream, pull, LABELS):
        entry = (await find_listing(tx, upstream, allowlist, row)).entry
        if entry is None:
            continue
        if left_out_by(entry, labels=pull.labels, association=pull.author_association) is None:
            await restore_left_out(tx, upstream, row, pull)
    left_out = await find_left_out_of_pull(tx, upstream, pull, PATHS)
    await request_files_of_deliveries(tx, upstream, {row["delivery"] for row in left_out}, now)


async def restore_left_out(
    tx: Tx, upstream: RepoName, row: Row, pull: KnownPull, *, concerned: bool | None = None
) -> None:
    """Hold a dispatch that was left out, with the present labels; one of a suspended backend is cancelled, as for a new delivery."""
    suspended = row["suspended_at"] is not None
    await tx.run(
        _RESTORE,
        state=(DispatchState.CANCELLED if suspended else DispatchState.HELD).value,
        reason=SUSPENDED if suspended else row["reason"],
        concerned=None if concerned is None else int(concerned),
        labels=json.dumps(pull.labels),
        upstream=upstream.key,
        delivery=row["delivery"],
        downstream=row["downstream"],
    )
