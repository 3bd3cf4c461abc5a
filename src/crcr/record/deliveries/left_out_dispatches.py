"""Dispatches left out by `labels` or `paths`, looked at again when a label, the text or the files may say otherwise.

A row that is no longer left out is held first, and `held_rows.reconsider` decides what it still waits for; so a label
releases nothing that an approval or a draft holds back. Nothing here leaves a backend out.
"""

import json
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.dispatch.plan import SUSPENDED
from crcr.decide.dispatch.selection import LABELS, PATHS, left_out_by
from crcr.decide.model import DispatchState, KnownPull, RepoName
from crcr.record.deliveries.head_deliveries import newest_delivery
from crcr.record.deliveries.held_dispatches import ask_for_files_of
from crcr.record.repositories.renames import find_listing
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

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
_TAKE_IN = Statement(
    text(
        "UPDATE dispatches SET state = :state, reason = :reason, concerned = coalesce(:concerned, concerned),"
        " labels = :labels, superseded_at = NULL WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
        " AND state = 'left_out'"
    )
)


async def left_out_of_pull(tx: Tx, upstream: RepoName, pull: KnownPull, reason: str) -> list[Row]:
    """What this option leaves out of the newest delivery of the pull request's head on its base."""
    if not pull.is_open:
        return []
    where = {"head_sha": pull.head_sha, "base_ref": pull.base_ref}
    newest = await newest_delivery(tx, upstream, pull.number, **where)
    if newest is None:
        return []
    return await tx.all(_LEFT_OUT, delivery=newest["guid"], upstream=upstream.key, reason=reason)


async def look_again(
    tx: Tx, upstream: RepoName, pull: KnownPull, allowlist: Allowlist, now: datetime
) -> None:
    """Take in what today's labels release, and have GitHub asked again for the files where `paths` left out."""
    for row in await left_out_of_pull(tx, upstream, pull, LABELS):
        entry = (await find_listing(tx, upstream, allowlist, row)).entry
        if entry is None:
            continue
        if left_out_by(entry, labels=pull.labels, association=pull.author_association) is None:
            await take_in(tx, upstream, row, pull)
    left_out = await left_out_of_pull(tx, upstream, pull, PATHS)
    await ask_for_files_of(tx, upstream, {row["delivery"] for row in left_out}, now)


async def take_in(
    tx: Tx, upstream: RepoName, row: Row, pull: KnownPull, *, concerned: bool | None = None
) -> None:
    """Hold what was left out, with the labels of today; a suspended backend is missing, as for a new delivery."""
    suspended = row["suspended_at"] is not None
    await tx.run(
        _TAKE_IN,
        state=(DispatchState.CANCELLED if suspended else DispatchState.HELD).value,
        reason=SUSPENDED if suspended else row["reason"],
        concerned=None if concerned is None else int(concerned),
        labels=json.dumps(pull.labels),
        upstream=upstream.key,
        delivery=row["delivery"],
        downstream=row["downstream"],
    )
