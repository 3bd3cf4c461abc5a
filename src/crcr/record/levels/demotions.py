"""The demotions in force, read from recorded standings: which L3 has no checks, and which L4 does not gate a new head."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.levels.standings import (
    Demotion,
    LevelOverride,
    LevelPolicy,
    LevelStanding,
    demotion_in_force,
    released_from_gate,
)
from crcr.decide.model import Level, RepoName
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none

STANDINGS = Statement(text("SELECT * FROM level_standings WHERE upstream = :upstream ORDER BY downstream"))
# A head keeps the members that it was recorded with: by every delivery of the commit, whatever its base and pull request.
_GATED = Statement(
    text(
        "SELECT DISTINCT d.downstream, coalesce(d.repository_id, r.repository_id) AS repository_id"
        " FROM deliveries v CROSS JOIN dispatches d LEFT JOIN repositories r ON r.upstream = d.upstream"
        " AND r.downstream = d.downstream WHERE v.head_sha = :head_sha"
        " AND v.upstream = :upstream AND v.head_sha IS NOT NULL AND d.delivery = v.guid AND d.upstream = v.upstream"
        " AND d.level = 4"
    )
)
_CONFIRMED_ID = Statement(
    text(
        "SELECT repository_id FROM repositories WHERE upstream = :upstream AND downstream = :downstream"
        " AND confirmed = 1"
    )
)


def is_evaluated(entry: AllowlistEntry) -> bool:
    """Whether an entry has a standing: L1 reports nothing, and a probe fails on purpose."""
    return entry.level >= Level.L2 and not entry.expect


async def read_demotions(
    tx: Tx, upstream: RepoName, entries: Iterable[AllowlistEntry], policy: LevelPolicy, now: datetime
) -> dict[str, Demotion]:
    """The demotions in force, by the backend's key."""
    rows = await tx.all(STANDINGS, upstream=upstream.key)
    listed = {entry.name.key: entry for entry in entries} if rows else {}
    demotions = {}
    for row in rows:
        entry = listed.get(row["downstream"])
        demotion = read_demotion(row, entry, policy, now) if entry else None
        if demotion is not None:
            demotions[row["downstream"]] = demotion
    return demotions


def read_demotion(row: Row, entry: AllowlistEntry, policy: LevelPolicy, now: datetime) -> Demotion | None:
    """The demotion of a recorded standing; that of another level than the entry's has none."""
    if row["level"] != int(entry.level) or not is_evaluated(entry):
        return None
    overridden = read_override(row, now) is not None
    return demotion_in_force(entry.level, LevelStanding(row["standing"]), policy, overridden=overridden)


def read_override(row: Row, now: datetime) -> LevelOverride | None:
    until = from_us_or_none(row["override_until_at"])
    if until is None or until <= now:
        return None
    return LevelOverride(who=row["override_who"], reason=row["override_reason"], until=until)


async def find_downgraded(
    tx: Tx, upstream: RepoName, head_sha: str, allowlist: Allowlist, policy: LevelPolicy, *, now: datetime
) -> frozenset[str]:
    """The L4 backends that do not gate a head that arrives now. A head that came with them at L4 before keeps them."""
    if not policy.l4_downgrade or not allowlist.gating:
        return frozenset()
    demotions = await read_demotions(tx, upstream, allowlist.gating, policy, now)
    if Demotion.DOWNGRADED not in demotions.values():
        return frozenset()
    rows = await tx.all(_GATED, upstream=upstream.key, head_sha=head_sha)
    gated = {row["downstream"] for row in rows}
    if gated:
        gated |= await _find_renamed(tx, upstream, rows, allowlist)
    return released_from_gate(demotions, gated)


async def _find_renamed(tx: Tx, upstream: RepoName, rows: list[Row], allowlist: Allowlist) -> set[str]:
    """The L4 backends that are, or may be, members of before under a new name; an unknown id may be any."""
    listed = {entry.name.key for entry in allowlist.gating}
    left = [row for row in rows if row["downstream"] not in listed]
    known_ids = {row["repository_id"] for row in rows} - {None}
    renamed = set()
    for key in listed - {row["downstream"] for row in rows}:
        found = await tx.one(_CONFIRMED_ID, upstream=upstream.key, downstream=key)
        repository_id = found["repository_id"] if found else None
        if repository_id in known_ids or any(None in (repository_id, row["repository_id"]) for row in left):
            renamed.add(key)
    return renamed
