"""Commits that downstreams tested on their own: noted when first seen, asked about once, and where they stand.

Questions wait for each other, a few seconds apart and not too many: whoever makes commits up must use up neither the
upstream's requests to GitHub nor the others' turns. What found no room, or no answer, is asked about later by the
sweeper, the oldest first, until it is not worth it any more.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.github.commit_origin import UNCHECKED, UNKNOWN, CommitPlace, CommitStanding
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.retry import GIVE_UP_AFTER
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.joining import commits
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

QUEUE = "commits"
"""The sweeper's own; each downstream has another, whose name begins alike."""
_APART = timedelta(seconds=6)
MOST_WAITING = 200
MOST_OF_ONE = 20
_ASK_AGAIN = timedelta(hours=1)
"""A commit that was not found in the base may be merged later, or its question may have been given up."""
_GIVEN_UP_WITHIN = GIVE_UP_AFTER + timedelta(hours=1)
"""By then an effect is over, done or not."""
KEEP_ASKING = timedelta(days=14)

_SEE = Statement(
    inserting(commits, "sha", "upstream", "standing", "seen_at", "ask_at").on_conflict_do_nothing()
)
_PLACE = Statement(
    text(
        "SELECT standing, branch, seen_at, checked_at, ask_at FROM commits"
        " WHERE sha = :sha AND upstream = :upstream"
    )
)
# Along the workers' index: all queues whose names begin with ours.
_WAITING = Statement(
    text(
        "SELECT count(*) AS number, coalesce(sum(CASE WHEN target = :target THEN 1 ELSE 0 END), 0) AS own"
        " FROM (SELECT target FROM effects WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
        " AND target >= 'commits' AND target < 'commits!' LIMIT :most) AS waiting"
    )
)
_ASKED = Statement(text("UPDATE commits SET ask_at = :at WHERE sha = :sha AND upstream = :upstream"))
_NO_ANSWER = Statement(
    text(
        "SELECT sha, seen_at FROM commits WHERE upstream = :upstream AND standing = 'unchecked' AND ask_at <= :now"
        " ORDER BY ask_at LIMIT :most"
    )
)
_LEFT = Statement(
    text(
        "UPDATE commits SET standing = 'unanswered' WHERE sha = :sha AND upstream = :upstream"
        " AND standing = 'unchecked'"
    )
)
# One that was given up is done with when it is asked anew.
_NOT_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at WHERE upstream = :upstream"
        " AND state = 'parked' AND kind = 'verify_commit' AND lane = :sha"
    )
)
_SETTLE = Statement(
    text(
        "UPDATE commits SET standing = :standing, branch = :branch, checked_at = :at WHERE sha = :sha"
        " AND upstream = :upstream AND standing <> 'base'"
    )
)


async def note_commit(tx: Tx, upstream: RepoName, downstream: RepoName, sha: str, now: datetime) -> None:
    """Note a commit that a downstream reported about, and have GitHub asked where it belongs."""
    key = {"sha": sha, "upstream": upstream.key}
    at = to_us(now)
    new = await tx.run(_SEE, standing=CommitStanding.UNCHECKED.value, seen_at=at, ask_at=at, **key)
    if new or await _is_doubtful(tx, key, now):
        await _ask(tx, upstream, f"{QUEUE} {downstream.key}", (sha,), now)


async def verify_unanswered_commits(tx: Tx, upstream: RepoName, now: datetime) -> int:
    """Have GitHub asked about commits that have no question open and no answer; return how many were looked at.

    What nobody has answered for so long is left as it is, until somebody reports about it again.
    """
    rows = await tx.all(_NO_ANSWER, upstream=upstream.key, now=to_us(now), most=MOST_OF_ONE)
    left = [row["sha"] for row in rows if row["seen_at"] <= to_us(now - KEEP_ASKING)]
    for sha in left:
        await tx.run(_LEFT, sha=sha, upstream=upstream.key)
        await tx.run(_NOT_PARKED, sha=sha, upstream=upstream.key, at=to_us(now))
    if left:
        await note_change(tx, upstream, "commit", now=now)
    await _ask(tx, upstream, QUEUE, [row["sha"] for row in rows if row["sha"] not in left], now)
    return len(rows)


async def _ask(tx: Tx, upstream: RepoName, target: str, shas: Sequence[str], now: datetime) -> None:
    if not shas:
        return
    row = await tx.one(_WAITING, upstream=upstream.key, target=target, most=MOST_WAITING)
    waiting, own = (row["number"], row["own"]) if row else (0, 0)
    for place, sha in enumerate(shas[: max(0, min(MOST_WAITING - waiting, MOST_OF_ONE - own))]):
        key = {"sha": sha, "upstream": upstream.key}
        kind = EffectKind.VERIFY_COMMIT
        effect = effect_row(upstream, kind, target=target, lane=sha, payload=sha.encode(), now=now)
        await add_once(tx, {**effect, "due_at": to_us(now + (waiting + place) * _APART)})
        await tx.run(_ASKED, at=to_us(now + _GIVEN_UP_WITHIN), **key)
        await tx.run(_NOT_PARKED, at=to_us(now), **key)


async def _is_doubtful(tx: Tx, key: dict[str, str], now: datetime) -> bool:
    row = await tx.one(_PLACE, **key)
    if row is None or row["standing"] == CommitStanding.BASE.value:
        return False
    if row["standing"] == CommitStanding.UNCHECKED.value and row["ask_at"] <= to_us(now):
        return True  # for another's question there was no room
    return bool((row["checked_at"] or row["seen_at"]) <= to_us(now - _ASK_AGAIN))


async def read_commit_place(tx: Tx, upstream: RepoName | str, sha: str | None) -> CommitPlace:
    """Where a commit stands that somebody reported about; one that nobody named is unknown."""
    if sha is None:
        return UNKNOWN
    key = upstream if isinstance(upstream, str) else upstream.key
    row = await tx.one(_PLACE, sha=sha, upstream=key)
    return UNCHECKED if row is None else CommitPlace(CommitStanding(row["standing"]), row["branch"])


class ReportedCommits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_open(self, upstream: RepoName, sha: str) -> bool:
        """Whether it is still to be found out where it stands; what is in the base stays there."""
        row = await self._database.quick_read(lambda tx: tx.one(_PLACE, sha=sha, upstream=upstream.key))
        return row is not None and row["standing"] != CommitStanding.BASE.value

    async def settle(self, upstream: RepoName, sha: str, place: CommitPlace, now: datetime) -> None:
        async def unit(tx: Tx) -> None:
            told = {"standing": place.standing.value, "branch": place.branch, "at": to_us(now)}
            if await tx.run(_SETTLE, sha=sha, upstream=upstream.key, **told):
                await note_change(tx, upstream, "commit", now=now)

        await self._database.write(unit)
