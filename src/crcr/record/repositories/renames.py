"""Repositories that changed their name: dispatches, waivers and reports follow the repository id.

A name counts for a repository only after GitHub confirmed its id (`confirmed`). An entry that is new on the allowlist, or
new at L4, is confirmed again, because a name that was free may belong to another repository now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

JOIN_PRESENT_NAME = (
    " LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = coalesce((SELECT named.downstream"
    " FROM repositories named WHERE named.upstream = d.upstream AND named.confirmed = 1 AND named.repository_id = coalesce("
    "d.repository_id, (SELECT o.repository_id FROM repositories o WHERE o.upstream = d.upstream"
    " AND o.downstream = d.downstream)) ORDER BY named.bound_at DESC, named.downstream LIMIT 1), d.downstream)"
)
"""Joins a dispatch `d` with the row `r` of the present name of its repository, to which requests are sent."""

RENAME = "rename"
"""The reason of an unsent dispatch that is held until it is known whether its repository left or was renamed."""

_NAMES = Statement(
    text(
        "SELECT downstream, confirmed FROM repositories WHERE repository_id = :repository_id AND upstream = :upstream"
        " ORDER BY bound_at DESC, downstream"
    )
)
_UNREAD = Statement(text("SELECT downstream FROM repositories WHERE upstream = :upstream AND confirmed = 0"))
_L4_DISPATCHES = Statement(
    text(
        "SELECT downstream FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND level = 4"
    )
)
_DISPATCHED_TO = Statement(
    text(
        "SELECT d.downstream FROM dispatches d LEFT JOIN repositories r ON r.upstream = d.upstream"
        " AND r.downstream = d.downstream WHERE d.delivery = :delivery AND d.upstream = :upstream"
        " AND coalesce(d.repository_id, r.repository_id) = :repository_id"
        " ORDER BY d.level DESC, d.downstream LIMIT 1"
    )
)


@dataclass(frozen=True, slots=True)
class Listing:
    """How the allowlist in force lists the repository of a dispatch."""

    entry: AllowlistEntry | None
    repository_id: int | None = None
    unread: tuple[RepoName, ...] = ()
    """New L4 entries with unconfirmed ids: each may be this repository under another name."""


async def find_listing(
    tx: Tx, upstream: RepoName, allowlist: Allowlist, dispatch: Row | Mapping[str, Any]
) -> Listing:
    """The entry of the repository that was dispatched to, whatever it is called now.

    `dispatch` has its key, `level`, `sent_at`, its own `repository_id`, and the `bound_id` of its name.
    """
    own = allowlist.find(RepoName(dispatch["downstream"]))
    sent_to, bound_id = dispatch["repository_id"], dispatch["bound_id"]
    repository_id = sent_to if sent_to is not None else bound_id
    gates = dispatch["level"] == Level.L4
    if own is not None and repository_id == bound_id and (own.level is Level.L4 or not gates):
        return Listing(own, repository_id)
    entry = await find_entry_by_id(tx, upstream, allowlist, repository_id, own)
    if not gates or (entry is not None and entry.level is Level.L4):
        return Listing(entry, repository_id)
    return Listing(
        entry, repository_id, await _possible_renames(tx, upstream, allowlist, dispatch, repository_id)
    )


async def find_entry_by_id(
    tx: Tx,
    upstream: RepoName,
    allowlist: Allowlist,
    repository_id: int | None,
    own: AllowlistEntry | None = None,
) -> AllowlistEntry | None:
    """The entry of a repository by its id, the highest level first; `own` stands behind those of its level."""
    entries: list[AllowlistEntry] = []
    if repository_id is not None:
        rows = await tx.all(_NAMES, repository_id=repository_id, upstream=upstream.key)
        names = [RepoName(row["downstream"]) for row in rows if row["confirmed"]]
        entries = [entry for name in names if (entry := allowlist.find(name)) is not None]
    if own is not None:
        entries.append(own)
    return max(entries, key=lambda entry: entry.level, default=None)


async def _possible_renames(
    tx: Tx,
    upstream: RepoName,
    allowlist: Allowlist,
    dispatch: Row | Mapping[str, Any],
    repository_id: int | None,
) -> tuple[RepoName, ...]:
    """L4 entries that were none when the delivery was recorded, and may be this repository under its new name."""
    delivery_key = {"delivery": dispatch["delivery"], "upstream": upstream.key}
    own = {row["downstream"] for row in await tx.all(_L4_DISPATCHES, **delivery_key)}
    added = [entry.name for entry in allowlist.gating if entry.name.key not in own]
    if not added:
        return ()
    if repository_id is None and dispatch["sent_at"] is not None:
        return tuple(added)  # the delivery was sent to it, and its id is unknown
    unread = {row["downstream"] for row in await tx.all(_UNREAD, upstream=upstream.key)}
    return tuple(name for name in added if name.key in unread)


async def find_listings(
    tx: Tx, upstream: RepoName, allowlist: Allowlist, dispatches: Iterable[Row]
) -> dict[str, Listing]:
    """The listing of each dispatch of a delivery, by the name that it is recorded under."""
    return {row["downstream"]: await find_listing(tx, upstream, allowlist, row) for row in dispatches}


async def find_dispatched_name(
    tx: Tx, upstream: RepoName, delivery: str, repository_id: int
) -> RepoName | None:
    """The name under which a delivery was dispatched to the repository of this id."""
    row = await tx.one(_DISPATCHED_TO, delivery=delivery, upstream=upstream.key, repository_id=repository_id)
    return RepoName(row["downstream"]) if row else None
