"""The table of merge groups, and their dispatches, which are held until the group's contents are known."""

import json
from datetime import datetime

from sqlalchemy import bindparam, select, text, update

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.dispatch.selection import matches_paths
from crcr.decide.events import MergeGroupEvent
from crcr.decide.github.requests_and_answers import ChangedFiles
from crcr.decide.model import RepoName
from crcr.record.deliveries.dispatches import (
    drop_delivery,
    find_held_of_delivery,
    hold_for,
    leave_out,
    release,
)
from crcr.record.repositories.renames import find_listings
from crcr.record.schema.checks import merge_groups
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

REUSED = "reused"
"""Why a group's dispatches stay held: a head with the same content has passed, and its result is reused."""

_BY_KEY = (
    merge_groups.c.head_sha == bindparam("head_sha"),
    merge_groups.c.upstream == bindparam("upstream"),
)
_LOAD = Statement(select(merge_groups).where(*_BY_KEY))
_ADD = Statement(
    inserting(
        merge_groups,
        *("head_sha", "upstream", "delivery", "head_ref", "base_sha", "base_ref", "created_at"),
    ).on_conflict_do_nothing()
)
_DESTROY = Statement(
    update(merge_groups)
    .where(*_BY_KEY, merge_groups.c.destroyed_at.is_(None))
    .values(destroyed_at=bindparam("at"), merged=bindparam("landed"))
)
_KNOW = Statement(
    update(merge_groups).where(*_BY_KEY).values(numbers=bindparam("known"), reused_from=bindparam("reused"))
)
_WITHDRAW = Statement(
    update(merge_groups).where(*_BY_KEY, merge_groups.c.reused_from.is_not(None)).values(reused_from=None)
)
_LIVE = Statement(
    text(
        "SELECT head_sha, head_ref, reused_from, numbers FROM merge_groups WHERE upstream = :upstream AND destroyed_at IS NULL"
    )
)
_DISPATCHED = Statement(
    text(
        "SELECT downstream FROM dispatches WHERE delivery = :delivery AND upstream = :upstream"
        " AND (state = 'sent' OR attempted_at IS NOT NULL)"
    )
)


async def load_group(tx: Tx, upstream: RepoName, head_sha: str) -> Row | None:
    return await tx.one(_LOAD, head_sha=head_sha, upstream=upstream.key)


async def live_groups(tx: Tx, upstream: RepoName) -> list[Row]:
    return await tx.all(_LIVE, upstream=upstream.key)


async def dispatched_for_group(tx: Tx, upstream: RepoName, head_sha: str) -> frozenset[str] | None:
    """Keys of downstreams that the group was dispatched to; None when there is no such group."""
    group = await load_group(tx, upstream, head_sha)
    if group is None:
        return None
    rows = await tx.all(_DISPATCHED, delivery=group["delivery"], upstream=upstream.key)
    return frozenset(row["downstream"] for row in rows)


async def add_group(tx: Tx, event: MergeGroupEvent, delivery: str, now: datetime) -> None:
    await tx.run(
        _ADD,
        head_sha=event.head_sha,
        upstream=event.upstream.key,
        delivery=delivery,
        head_ref=event.head_ref,
        base_sha=event.base_sha,
        base_ref=event.base_ref,
        created_at=to_us(now),
    )


async def destroy_group(tx: Tx, event: MergeGroupEvent, delivery: str, now: datetime) -> None:
    """End a group, even one whose creation was not received, and cancel its unsent dispatches."""
    group = await load_group(tx, event.upstream, event.head_sha)
    if group is None:
        await add_group(tx, event, delivery, now)
    else:
        await drop_delivery(tx, event.upstream, group["delivery"], "the merge group was destroyed", now)
    where = {"head_sha": event.head_sha, "upstream": event.upstream.key}
    await tx.run(_DESTROY, **where, at=to_us(now), landed=int(event.merged))


async def record_group_contents(
    tx: Tx, upstream: RepoName, head_sha: str, *, numbers: tuple[int, ...], reused_from: str | None
) -> None:
    """Record the pull requests in the group, and the passed head with the same content, if any."""
    await tx.run(
        _KNOW, head_sha=head_sha, upstream=upstream.key, known=json.dumps(numbers), reused=reused_from
    )


async def reuse(tx: Tx, upstream: RepoName, delivery: str) -> None:
    """Keep the group's dispatches held while another commit's result is reused."""
    await hold_for(tx, upstream, await find_held_of_delivery(tx, upstream, delivery), REUSED)


async def withdraw_reuse(
    tx: Tx, upstream: RepoName, head_sha: str, allowlist: Allowlist, now: datetime
) -> bool:
    """The reused head no longer passes: dispatch the group after all."""
    if not await tx.run(_WITHDRAW, head_sha=head_sha, upstream=upstream.key):
        return False
    group = await load_group(tx, upstream, head_sha)
    if group is not None:
        await release_group(tx, upstream, group["delivery"], allowlist, files=None, now=now)
    return True


async def release_group(
    tx: Tx,
    upstream: RepoName,
    delivery: str,
    allowlist: Allowlist,
    *,
    files: ChangedFiles | None,
    now: datetime,
) -> None:
    """Release a group's dispatches that its files concern; all of them without a complete list of files."""
    held = await find_held_of_delivery(tx, upstream, delivery)
    listings = await find_listings(tx, upstream, allowlist, held)
    entries = {name: listing.entry for name, listing in listings.items()}
    # The options of a backend that may have been renamed are unknown: it is dispatched to.
    gone = [
        row for row in held if entries[row["downstream"]] is None and not listings[row["downstream"]].unread
    ]
    await leave_out(tx, upstream, gone, "left the allowlist")
    known = files is not None and files.complete
    idle = [
        row
        for row in held
        if (entry := entries[row["downstream"]]) and known and files and not matches_paths(entry, files.paths)
    ]
    await leave_out(tx, upstream, idle, "paths")
    await release(tx, upstream, [row for row in held if row not in gone and row not in idle], now)
