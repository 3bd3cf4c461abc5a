"""Held dispatches: what they wait for is looked at again whenever something of it may have changed.

A dispatch may wait for several things in turn (an approval, the end of a draft, an answer about files), so
nothing here releases for one reason: the rule of `selection.hold_reason` is asked anew.
"""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.dispatch.selection import PATHS, hold_reason, is_trusted
from crcr.decide.model import DispatchState, EffectKind, KnownPull, RepoName
from crcr.record.deliveries.approvals import is_approved
from crcr.record.deliveries.dispatches import send
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.repositories.renames import find_listing
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

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
_HELD_OF = Statement(
    text(
        f"{_SELECT}"
        " WHERE d.upstream = :upstream AND d.delivery = :delivery AND d.state = 'held' ORDER BY d.downstream"
    )
)
_MOVE = Statement(
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


async def held_of_pull(tx: Tx, upstream: RepoName, number: int, *, delivery: str | None = None) -> list[Row]:
    """What is held of a pull request, save what a doubt holds besides."""
    return await tx.all(_HELD, upstream=upstream.key, number=number, delivery=delivery)


async def held_of_delivery(tx: Tx, upstream: RepoName, delivery: str) -> list[Row]:
    return await tx.all(_HELD_OF, upstream=upstream.key, delivery=delivery)


async def reconsider(
    tx: Tx, upstream: RepoName, pull: KnownPull, allowlist: Allowlist, now: datetime
) -> None:
    """Let go of what nothing holds any more, and write down what holds the rest."""
    leaving: list[Row] = []
    for row in await held_of_pull(tx, upstream, pull.number):
        listing = await find_listing(tx, upstream, allowlist, row)
        entry = listing.entry
        if entry is None and listing.unread:
            continue  # it may be listed under its new name, with options that are not known yet
        if entry is None:
            await _move(tx, upstream, row, DispatchState.CANCELLED, "left the allowlist")
            continue
        if row["action"] == "closed" and pull.is_open:
            # Told now, beside the reopening, it would end what the reopening has begun.
            await _move(tx, upstream, row, DispatchState.CANCELLED, "the pull request was reopened")
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
            leaving.append(row)
        elif reason != row["reason"]:
            await _move(tx, upstream, row, DispatchState.HELD, reason)
    await release(tx, upstream, leaving, now)
    await ask_for_files(tx, upstream, pull.number, now)


async def ask_for_files(tx: Tx, upstream: RepoName, number: int, now: datetime) -> None:
    """Have GitHub asked which files changed, for whatever waits for just that."""
    held = await held_of_pull(tx, upstream, number)
    await ask_for_files_of(tx, upstream, {row["delivery"] for row in held if row["reason"] == PATHS}, now)


async def ask_for_files_of(tx: Tx, upstream: RepoName, found: set[str], now: datetime) -> None:
    """Have GitHub asked which files these deliveries change."""
    for delivery in sorted(found):
        lane = f"files/{delivery}"
        await add_once(
            tx,
            effect_row(
                upstream, EffectKind.ASK_FILES, target=upstream.key, lane=lane, delivery=delivery, now=now
            ),
        )


async def settle_files(tx: Tx, upstream: RepoName, rows: list[Row], concerned: frozenset[str]) -> None:
    """Write down what the changed files say; who is not concerned is left out."""
    for row in rows:
        is_concerned = row["downstream"] in concerned
        await tx.run(_CONCERNED, concerned=int(is_concerned), **_key_of(upstream, row))
        if not is_concerned:
            await _move(tx, upstream, row, DispatchState.LEFT_OUT, PATHS)


async def release(tx: Tx, upstream: RepoName, rows: list[Row], now: datetime) -> None:
    for row in rows:
        await _move(tx, upstream, row, DispatchState.WAITING, None)
    await send(tx, upstream.key, rows, now)


async def hold_for(tx: Tx, upstream: RepoName, rows: list[Row], reason: str) -> None:
    for row in rows:
        await _move(tx, upstream, row, DispatchState.HELD, reason)


async def leave_out(tx: Tx, upstream: RepoName, rows: list[Row], reason: str) -> None:
    for row in rows:
        await _move(tx, upstream, row, DispatchState.LEFT_OUT, reason)


async def drop_held(tx: Tx, upstream: RepoName, rows: list[Row], now: datetime) -> None:
    for row in rows:
        await _move(tx, upstream, row, DispatchState.CANCELLED, "superseded", superseded_at=to_us(now))


async def _move(
    tx: Tx,
    upstream: RepoName,
    row: Row,
    state: DispatchState,
    reason: str | None,
    *,
    superseded_at: int | None = None,
) -> None:
    await tx.run(
        _MOVE, state=state.value, reason=reason, superseded_at=superseded_at, **_key_of(upstream, row)
    )


def _key_of(upstream: RepoName, row: Row) -> dict[str, str]:
    return {"upstream": upstream.key, "delivery": row["delivery"], "downstream": row["downstream"]}
