"""Commits that downstreams tested on their own: noted when first seen, asked about once, and where they stand.

Questions wait for each other, a few seconds apart and not too many: whoever makes commits up must not use up the
upstream's requests to GitHub.
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.base_history import UNCHECKED, UNKNOWN, CommitPlace, CommitStanding
from crcr.decide.model import EffectKind, RepoName
from crcr.record.database import Database, Tx
from crcr.record.effect_rows import add_once, effect_row
from crcr.record.log_rows import note_change
from crcr.record.schema_joining import commits
from crcr.record.statement import Statement, inserting
from crcr.record.times import to_us

QUEUE = "commits"
_APART = timedelta(seconds=6)
_MOST_WAITING = 100
_ASK_AGAIN = timedelta(hours=1)
"""A commit that was not found in the base may be merged later, or its question may have been given up."""

_SEE = Statement(inserting(commits, "sha", "upstream", "standing", "seen_at").on_conflict_do_nothing())
_PLACE = Statement(
    text(
        "SELECT standing, branch, seen_at, checked_at FROM commits WHERE sha = :sha AND upstream = :upstream"
    )
)
_WAITING = Statement(
    text(
        "SELECT count(*) AS number FROM (SELECT 1 FROM effects WHERE upstream = :upstream AND target = :target"
        " AND state IN ('waiting', 'claimed') LIMIT :most) AS waiting"
    )
)
_SETTLE = Statement(
    text(
        "UPDATE commits SET standing = :standing, branch = :branch, checked_at = :at WHERE sha = :sha"
        " AND upstream = :upstream AND standing <> 'base'"
    )
)


async def see_commit(tx: Tx, upstream: RepoName, sha: str, now: datetime) -> None:
    """Note a commit that was reported about, and have GitHub asked where it belongs."""
    key = {"sha": sha, "upstream": upstream.key}
    new = await tx.run(_SEE, standing=CommitStanding.UNCHECKED.value, seen_at=to_us(now), **key)
    if not new and not await _is_doubtful(tx, key, now):
        return
    row = await tx.one(_WAITING, upstream=upstream.key, target=QUEUE, most=_MOST_WAITING)
    waiting = row["number"] if row else 0
    if waiting < _MOST_WAITING:
        effect = effect_row(
            upstream, EffectKind.VERIFY_COMMIT, target=QUEUE, lane=sha, payload=sha.encode(), now=now
        )
        await add_once(tx, {**effect, "due_at": to_us(now + waiting * _APART)})


async def _is_doubtful(tx: Tx, key: dict[str, str], now: datetime) -> bool:
    row = await tx.one(_PLACE, **key)
    if row is None or row["standing"] == CommitStanding.BASE.value:
        return False
    return bool((row["checked_at"] or row["seen_at"]) <= to_us(now - _ASK_AGAIN))


async def read_place(tx: Tx, upstream: RepoName | str, sha: str | None) -> CommitPlace:
    """Where a commit stands that somebody reported about; one that nobody named is unknown."""
    if sha is None:
        return UNKNOWN
    key = upstream if isinstance(upstream, str) else upstream.key
    row = await tx.one(_PLACE, sha=sha, upstream=key)
    return UNCHECKED if row is None else CommitPlace(CommitStanding(row["standing"]), row["branch"])


class Commits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_open(self, upstream: RepoName, sha: str) -> bool:
        """Whether it is still to be found out where it stands; what is in the base stays there."""
        row = await self._database.glance(lambda tx: tx.one(_PLACE, sha=sha, upstream=upstream.key))
        return row is not None and row["standing"] != CommitStanding.BASE.value

    async def settle(self, upstream: RepoName, sha: str, place: CommitPlace, now: datetime) -> None:
        async def unit(tx: Tx) -> None:
            told = {"standing": place.standing.value, "branch": place.branch, "at": to_us(now)}
            if await tx.run(_SETTLE, sha=sha, upstream=upstream.key, **told):
                await note_change(tx, upstream, "commit", now=now)

        await self._database.write(unit)
