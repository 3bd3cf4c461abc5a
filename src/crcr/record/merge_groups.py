"""Merge groups: which are live, what GitHub says is in them, and whether a passed head is the same content."""

import json
from datetime import datetime

from sqlalchemy import bindparam, select, text, update

from crcr.decide.events import MergeGroup
from crcr.decide.merge_group import GroupToRead
from crcr.decide.model import RepoName
from crcr.decide.outside import ChangedFiles
from crcr.decide.selection import touches
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database, Row, Tx
from crcr.record.dispatch_rows import drop_delivery
from crcr.record.held_rows import held_of_delivery, leave_out, release
from crcr.record.log_rows import note_change
from crcr.record.publishing import Publishing
from crcr.record.schema_gate import merge_groups
from crcr.record.statement import Statement, inserting
from crcr.record.times import to_us

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
    .values(destroyed_at=bindparam("at"))
)
_KNOW = Statement(
    update(merge_groups).where(*_BY_KEY).values(numbers=bindparam("known"), reused_from=bindparam("reused"))
)
_TOLD = Statement(
    text(
        "SELECT downstream FROM dispatches WHERE delivery = :delivery AND upstream = :upstream"
        " AND (state = 'sent' OR attempted_at IS NOT NULL)"
    )
)
# Who takes no such events has said nothing about the content: its pass on a head does not speak for a group.
_GATING = Statement(
    text(
        "SELECT downstream FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND level = 4"
        " AND NOT (state = 'left_out' AND reason = 'events')"
    )
)
_PASSED_HEADS = Statement(
    text(
        "SELECT p.number, p.head_sha, (SELECT v.guid FROM deliveries v WHERE v.upstream = p.upstream"
        " AND v.number = p.number AND v.head_sha = p.head_sha AND v.action IN ('opened', 'reopened', 'synchronize')"
        " AND v.state = 'accepted' ORDER BY v.received_at DESC, v.guid DESC LIMIT 1) AS delivery"
        " FROM pulls p JOIN gates g ON g.head_sha = p.head_sha AND g.upstream = p.upstream"
        " WHERE p.upstream = :upstream AND p.number = :number AND p.is_open = 1 AND g.state = 'passed'"
    )
)
_INSTALLATION = Statement(
    text("SELECT repository_id, installation_id FROM upstreams WHERE upstream = :upstream")
)


async def load_group(tx: Tx, upstream: RepoName, head_sha: str) -> Row | None:
    return await tx.one(_LOAD, head_sha=head_sha, upstream=upstream.key)


async def told_of(tx: Tx, upstream: RepoName, head_sha: str) -> frozenset[str] | None:
    """Who was told of the group; None when there is no such group."""
    group = await load_group(tx, upstream, head_sha)
    if group is None:
        return None
    rows = await tx.all(_TOLD, delivery=group["delivery"], upstream=upstream.key)
    return frozenset(row["downstream"] for row in rows)


async def add_group(tx: Tx, event: MergeGroup, delivery: str, now: datetime) -> None:
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


async def destroy_group(tx: Tx, event: MergeGroup, now: datetime) -> None:
    """End a group: what is unsent of it is pointless now."""
    group = await load_group(tx, event.upstream, event.head_sha)
    if group is None:
        return
    await tx.run(_DESTROY, head_sha=event.head_sha, upstream=event.upstream.key, at=to_us(now))
    await drop_delivery(tx, event.upstream, group["delivery"], "the merge group was destroyed", now)


class MergeGroups:
    """What the effect that reads a group needs of the store."""

    def __init__(self, database: Database, allowlists: Allowlists, publishing: Publishing) -> None:
        self._database = database
        self._allowlists = allowlists
        self._publishing = publishing

    async def to_read(self, upstream: RepoName, head_sha: str) -> GroupToRead | None:
        """The group, if it is live and its dispatches still wait."""

        async def unit(tx: Tx) -> GroupToRead | None:
            group = await load_group(tx, upstream, head_sha)
            if group is None or group["destroyed_at"] is not None or group["numbers"] is not None:
                return None
            return GroupToRead(group["delivery"], head_sha, group["base_sha"], group["head_ref"])

        return await self._database.glance(unit)

    async def passed_heads(
        self, upstream: RepoName, group: GroupToRead, numbers: tuple[int, ...]
    ) -> tuple[str, ...]:
        """Heads of these pull requests whose gate has passed, by the word of everybody who gates the group."""

        async def unit(tx: Tx) -> tuple[str, ...]:
            rows = [await tx.one(_PASSED_HEADS, upstream=upstream.key, number=each) for each in numbers]
            wanted = await self._gating(tx, upstream, group.delivery)
            return tuple(
                [
                    row["head_sha"]
                    for row in rows
                    if row is not None and wanted <= await self._gating(tx, upstream, row["delivery"])
                ]
            )

        return await self._database.glance(unit)

    async def _gating(self, tx: Tx, upstream: RepoName, delivery: str) -> frozenset[str]:
        rows = await tx.all(_GATING, delivery=delivery, upstream=upstream.key)
        return frozenset(row["downstream"] for row in rows)

    async def settle(
        self,
        upstream: RepoName,
        group: GroupToRead,
        *,
        numbers: tuple[int, ...],
        reused_from: str | None,
        files: ChangedFiles | None,
        now: datetime,
    ) -> None:
        """Record what GitHub said, and let go of the group's dispatches, or leave them out for a passed head."""

        async def unit(tx: Tx) -> None:
            row = await load_group(tx, upstream, group.head_sha)
            if row is None or row["destroyed_at"] is not None:
                return
            await tx.run(
                _KNOW,
                head_sha=group.head_sha,
                upstream=upstream.key,
                known=json.dumps(numbers),
                reused=reused_from,
            )
            if reused_from is not None:
                held = await held_of_delivery(tx, upstream, row["delivery"])
                await leave_out(tx, upstream, held, f"reused from {reused_from[:12]}")
            else:
                await self._let_go(tx, upstream, row["delivery"], files, now)
            await note_change(tx, upstream, "delivery", delivery=row["delivery"], now=now)
            await self._publishing.again(tx, upstream, (group.head_sha,), now)

        await self._database.write(unit)

    async def _let_go(
        self,
        tx: Tx,
        upstream: RepoName,
        delivery: str,
        files: ChangedFiles | None,
        now: datetime,
    ) -> None:
        held = await held_of_delivery(tx, upstream, delivery)
        allowlist = await self._allowlists.in_force(tx, upstream)
        entries = {row["downstream"]: allowlist.find(RepoName(row["downstream"])) for row in held}
        gone = [row for row in held if entries[row["downstream"]] is None]
        await leave_out(tx, upstream, gone, "left the allowlist")
        listed = [(row, entry) for row in held if (entry := entries[row["downstream"]]) is not None]
        known = files is not None and files.complete
        idle = [row for row, entry in listed if known and files and not touches(entry, files.paths)]
        await leave_out(tx, upstream, idle, "paths")
        await release(tx, upstream, [row for row, _ in listed if row not in idle], now)
