"""At which level a backend stands since when: one row for each change that a version of the allowlist made."""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.model import Level, RepoName
from crcr.decide.views.backend import LevelChange
from crcr.record.schema.statistics import levels
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, to_us

_NOW = Statement(
    text(
        "SELECT l.downstream, l.level FROM levels l WHERE l.upstream = :upstream AND l.version ="
        " (SELECT max(n.version) FROM levels n WHERE n.upstream = l.upstream AND n.downstream = l.downstream)"
    )
)
_ADD = Statement(
    inserting(levels, "upstream", "downstream", "version", "level", "at").on_conflict_do_nothing()
)
_HISTORY = Statement(
    text(
        "SELECT version, level, at FROM levels WHERE upstream = :upstream AND downstream = :downstream"
        " ORDER BY version DESC LIMIT :most"
    )
)
_MOST = 20


async def levels_now(tx: Tx, upstream: RepoName) -> dict[str, int | None]:
    """The level of each downstream by the newest version that was followed; None for those that left."""
    return {row["downstream"]: row["level"] for row in await tx.all(_NOW, upstream=upstream.key)}


async def follow_levels(
    tx: Tx, upstream: RepoName, allowlist: Allowlist, version: int, now: datetime
) -> None:
    """Write down who stands elsewhere than before."""
    before = await levels_now(tx, upstream)
    listed = {entry.name.key: int(entry.level) for entry in allowlist.entries}
    left = dict.fromkeys(key for key, level in before.items() if level is not None and key not in listed)
    changed = {key: level for key, level in listed.items() if before.get(key) != level} | left
    at = {"upstream": upstream.key, "version": version, "at": to_us(now)}
    if changed:
        await tx.many(_ADD, [{**at, "downstream": key, "level": level} for key, level in changed.items()])


async def level_history(tx: Tx, upstream: RepoName, downstream: RepoName) -> tuple[LevelChange, ...]:
    """The changes, newest first."""
    rows = await tx.all(_HISTORY, upstream=upstream.key, downstream=downstream.key, most=_MOST)
    return tuple(
        LevelChange(from_us(row["at"]), None if row["level"] is None else Level(row["level"]), row["version"])
        for row in rows
    )
